package soak

import (
	"fmt"
)

const (
	// heapSlack is how many bytes the live heap may grow in half of the rounds: in a run of the usual size, less than
	// 1 KiB for each proxy that connected. memorySlack is the same for the process, which may keep freed memory.
	heapSlack, memorySlack = 512 << 10, 8 << 20
	// goroutineSlack is for goroutines that serve the metrics, whose number varies.
	goroutineSlack = 4
)

// usage is the control plane's usage of resources when no proxy is connected.
type usage struct{ goroutines, heap, memory float64 }

func (l usage) String() string {
	return fmt.Sprintf("%.0f goroutines, %.2f MiB live, %.1f MiB of memory", l.goroutines, l.heap/(1<<20), l.memory/(1<<20))
}

// growth compares the first half of the rounds with the second. It ignores the first round, because some objects are
// allocated on first use. It does not compare single rounds, because a process returns memory at any time.
func growth(all []usage) error {
	first, second := all[:len(all)/2], all[len(all)/2:]
	before, after := first[0], second[0]
	for _, l := range first {
		before = usage{max(before.goroutines, l.goroutines), min(before.heap, l.heap), min(before.memory, l.memory)}
	}
	for _, l := range second {
		after = usage{min(after.goroutines, l.goroutines), min(after.heap, l.heap), min(after.memory, l.memory)}
	}
	if after.goroutines > before.goroutines+goroutineSlack || after.heap > before.heap+heapSlack || after.memory > before.memory+memorySlack {
		return fmt.Errorf("the control plane keeps memory of disconnected proxies: %s in the first %d rounds, %s in the others", before, len(first), after)
	}
	return nil
}
