// Package proc reads the CPU time and memory of a process from /proc.
package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// CPU returns the time that all threads ran, as the scheduler counts it. It lacks threads that have ended; Go's do not end.
func CPU(pid int) (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, err
	}
	var total time.Duration
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		first, _, _ := strings.Cut(string(data), " ")
		ns, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("parse %s: %w", file, err)
		}
		total += time.Duration(ns)
	}
	if total == 0 {
		return 0, errors.New("the kernel counts no time of threads: it lacks /proc/PID/task/*/schedstat")
	}
	return total, nil
}

// Memory is in bytes. RssAnon is the part that is not backed by files.
type Memory struct{ RssAnon, VmRSS float64 }

// MemoryOf reads the memory of a process.
func MemoryOf(pid int) (Memory, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Memory{}, err
	}
	var m Memory
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}
		var value *float64
		switch fields[0] {
		case "RssAnon:":
			value = &m.RssAnon
		case "VmRSS:":
			value = &m.VmRSS
		default:
			continue
		}
		kib, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			return Memory{}, fmt.Errorf("parse /proc/%d/status: %q: %w", pid, fields[1], err)
		}
		*value = kib * 1024
	}
	if m.RssAnon == 0 || m.VmRSS == 0 {
		return Memory{}, errors.New("the kernel says no RssAnon or VmRSS")
	}
	return m, nil
}
