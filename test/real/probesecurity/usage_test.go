package probesecurity

import (
	"fmt"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/memorytest"
	"github.com/sonde-mesh/sonde/test/bench/proc"
)

func (a *agent) cpu(pids ...int) proc.Time {
	a.t.Helper()
	t, err := proc.CPU(pids...)
	if err != nil {
		a.t.Error(err)
	}
	return t
}

// usage is the memory of both processes.
type usage struct{ guard, worker memorytest.Memory }

// sum is the total that the limits apply to.
func (u usage) sum() memorytest.Memory { return u.guard.And(u.worker) }

func (u usage) String() string {
	return fmt.Sprintf("%v (guard: %v, worker: %v)", u.sum(), u.guard, u.worker)
}

// memoryWatch records the maximum memory of an agent.
type memoryWatch struct {
	t     *testing.T
	pids  []int
	end   chan struct{}
	ended chan usage
}

func watchMemory(t *testing.T, a *agent) *memoryWatch {
	w := &memoryWatch{t: t, pids: a.processes(), end: make(chan struct{}), ended: make(chan usage, 1)}
	go func() {
		var most usage
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			now := w.now()
			most = usage{most.guard.Max(now.guard), most.worker.Max(now.worker)}
			select {
			case <-w.end:
				w.ended <- most
				return
			case <-ticker.C:
			}
		}
	}()
	return w
}

func (w *memoryWatch) now() usage {
	var u usage
	for i, m := range []*memorytest.Memory{&u.guard, &u.worker} {
		var err error
		if *m, err = memorytest.Of(w.pids[i]); err != nil {
			w.t.Error(err)
		}
	}
	return u
}

func (w *memoryWatch) stop() usage {
	close(w.end)
	return <-w.ended
}
