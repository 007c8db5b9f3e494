// Package memorytest reads the memory usage of a process, for tests.
package memorytest

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Memory is the memory of a process, in bytes. RssAnon is the part not backed by files, so it belongs to the process
// alone.
type Memory struct{ RssAnon, VmRSS float64 }

// Of reads the memory of a process from /proc.
func Of(pid int) (Memory, error) {
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
		return Memory{}, errors.New("the kernel reports no RssAnon or VmRSS")
	}
	return m, nil
}

// And returns the memory of two processes of one program: private memory adds up, and the larger shared part counts
// once.
func (m Memory) And(other Memory) Memory {
	return Memory{m.RssAnon + other.RssAnon, max(m.VmRSS, other.VmRSS)}
}

// Max returns the higher values of two measurements.
func (m Memory) Max(other Memory) Memory {
	return Memory{max(m.RssAnon, other.RssAnon), max(m.VmRSS, other.VmRSS)}
}

// Exceeds reports whether a value is above its limit.
func (m Memory) Exceeds(limit Memory) bool { return m.RssAnon > limit.RssAnon || m.VmRSS > limit.VmRSS }

// String is for the output of tests.
func (m Memory) String() string {
	return fmt.Sprintf("RssAnon %.0f KiB, VmRSS %.0f KiB", m.RssAnon/1024, m.VmRSS/1024)
}
