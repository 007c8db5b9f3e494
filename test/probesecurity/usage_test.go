package probesecurity

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// cpu is the time for which the threads of processes ran, and for which they were ready to run while others had the
// processors.
type cpu struct{ ran, waited time.Duration }

func (c cpu) since(before cpu) cpu { return cpu{c.ran - before.ran, c.waited - before.waited} }

func (a *agent) cpu(pids ...int) cpu {
	a.t.Helper()
	var sum cpu
	for _, pid := range pids {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		if err != nil {
			a.t.Fatal(err)
		}
		for _, file := range files {
			var ran, waited int64 // ns
			data, err := os.ReadFile(file)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
				continue // the thread has ended
			}
			if err == nil {
				_, err = fmt.Sscan(string(data), &ran, &waited)
			}
			if err != nil {
				a.t.Errorf("read %s: %v", file, err)
			}
			sum.ran += time.Duration(ran)
			sum.waited += time.Duration(waited)
		}
	}
	return sum
}

// memory of a process in KiB.
type memory struct{ rssAnon, vmRSS int }

func (m memory) max(o memory) memory {
	return memory{max(m.rssAnon, o.rssAnon), max(m.vmRSS, o.vmRSS)}
}

func memoryOf(pid int) (memory, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return memory{}, err
	}
	var m memory
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(line, ":")
		kib, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
		switch key {
		case "RssAnon":
			m.rssAnon = kib
		case "VmRSS":
			m.vmRSS = kib
		}
	}
	if m.rssAnon == 0 || m.vmRSS == 0 {
		return memory{}, fmt.Errorf("read the memory of %d: it is not in\n%s", pid, data)
	}
	return m, nil
}

// usage is the memory of both processes.
type usage struct{ guard, worker memory }

// sum is what counts: what is private adds up, and of what is shared the larger one has all.
func (u usage) sum() memory {
	return memory{rssAnon: u.guard.rssAnon + u.worker.rssAnon, vmRSS: max(u.guard.vmRSS, u.worker.vmRSS)}
}

func (u usage) String() string {
	return fmt.Sprintf("RssAnon %.1f MiB (guard %.1f, worker %.1f), VmRSS %.1f MiB (guard %.1f)", mib(u.sum().rssAnon), mib(u.guard.rssAnon), mib(u.worker.rssAnon), mib(u.sum().vmRSS), mib(u.guard.vmRSS))
}

func mib(kib int) float64 { return float64(kib) / 1024 }

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
		var highest usage
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			now := w.now()
			highest = usage{highest.guard.max(now.guard), highest.worker.max(now.worker)}
			select {
			case <-w.end:
				w.ended <- highest
				return
			case <-ticker.C:
			}
		}
	}()
	return w
}

func (w *memoryWatch) now() usage {
	var u usage
	for i, m := range []*memory{&u.guard, &u.worker} {
		var err error
		if *m, err = memoryOf(w.pids[i]); err != nil {
			w.t.Error(err)
		}
	}
	return u
}

func (w *memoryWatch) stop() usage {
	close(w.end)
	return <-w.ended
}
