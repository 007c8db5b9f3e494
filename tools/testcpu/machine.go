package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"
)

// nominal is the CPU time of work on the machine for which the budget was set. On a shared machine, the same work may
// take twice the CPU time that it took an hour before.
const nominal = 50 * time.Millisecond

// sampleInterval keeps the cost of the samples at about 1 % of a processor.
const sampleInterval = 5 * time.Second

// startSamples measures the slowness at intervals until end is called. It measures during the test, since what slows
// the test down may end before the test does.
func startSamples() (end func() ([]float64, error)) {
	type result struct {
		samples []float64
		err     error
	}
	stop, results := make(chan struct{}), make(chan result)
	go func() {
		var r result
		timer := time.NewTimer(sampleInterval / 5) // short tests have no sample
		defer timer.Stop()
		for r.err == nil {
			select {
			case <-stop:
				results <- r
				return
			case <-timer.C:
				var slowness float64
				slowness, r.err = measureSlowness()
				r.samples = append(r.samples, slowness)
				timer.Reset(sampleInterval)
			}
		}
		<-stop
		results <- r
	}()
	return func() ([]float64, error) {
		close(stop)
		r := <-results
		return r.samples, r.err
	}
}

// mean of slownesses, 1 for none.
func mean(samples []float64) float64 {
	if len(samples) == 0 {
		return 1
	}
	sum := 0.0
	for _, sample := range samples {
		sum += sample
	}
	return sum / float64(len(samples))
}

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
