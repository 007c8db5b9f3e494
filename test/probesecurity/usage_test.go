package probesecurity

import (
	"fmt"
	"testing"
	"time"

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
type usage struct{ guard, worker proc.Memory }

// sum is what counts: what is private adds up, and of what is shared the larger one has all.
func (u usage) sum() proc.Memory {
	return proc.Memory{RssAnon: u.guard.RssAnon + u.worker.RssAnon, VmRSS: max(u.guard.VmRSS, u.worker.VmRSS)}
}

func (u usage) String() string {
	mib := func(bytes float64) float64 { return bytes / (1 << 20) }
	return fmt.Sprintf("RssAnon %.1f MiB (guard %.1f, worker %.1f), VmRSS %.1f MiB (guard %.1f)",
		mib(u.sum().RssAnon), mib(u.guard.RssAnon), mib(u.worker.RssAnon), mib(u.sum().VmRSS), mib(u.guard.VmRSS))
}

func highest(a, b proc.Memory) proc.Memory {
	return proc.Memory{RssAnon: max(a.RssAnon, b.RssAnon), VmRSS: max(a.VmRSS, b.VmRSS)}
}

// memoryWatch notes the highest memory of an agent.
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
			most = usage{highest(most.guard, now.guard), highest(most.worker, now.worker)}
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
	for i, m := range []*proc.Memory{&u.guard, &u.worker} {
		var err error
		if *m, err = proc.MemoryOf(w.pids[i]); err != nil {
			w.t.Error(err)
		}
	}
	return u
}

func (w *memoryWatch) stop() usage {
	close(w.end)
	return <-w.ended
}
