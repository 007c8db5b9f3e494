package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"
)

// nominal is the CPU time of work on the budget's machine. On a shared machine, the same work may take twice the CPU
// time of an hour before.
const nominal = 50 * time.Millisecond

// measureSlowness returns the current CPU time of work relative to nominal.
func measureSlowness() (float64, error) {
	before, err := cpuTime()
	if err != nil {
		return 0, err
	}
	work()
	after, err := cpuTime()
	if err != nil {
		return 0, err
	}
	return float64(after-before) / float64(nominal), nil
}

// cpuTime of this process.
func cpuTime() (time.Duration, error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0, fmt.Errorf("get the CPU time: %w", err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), nil
}

// work has typical operations of tests: it formats, fills maps, sorts and compares.
func work() {
	for range 50 {
		texts := map[string]string{}
		for i := range 2000 {
			name := fmt.Sprintf("name-%d", i*7919%2000)
			texts[name] = strings.Repeat(name, 8)
		}
		names := slices.Sorted(maps.Keys(texts))
		for i, name := range names[1:] {
			if strings.Compare(texts[names[i]], texts[name]) == 0 {
				panic("two names have one text")
			}
		}
	}
}
