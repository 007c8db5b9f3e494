package guard_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// TestStops sends requests to a worker that is stopped while it handles a request: it can continue
// later.
func TestStops(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "serves")
	g.waitReady()
	worker := g.worker()
	started := time.Now()
	got, text := g.probe("one", "/first/stop")
	const tick = 10 * time.Millisecond // the kernel's receive time of the request is rounded to ticks
	if took := time.Since(started); got != errored || took < 1500*time.Millisecond-tick {
		t.Errorf("a worker that stops: %s %q after %s, want Errored half a second after the timeout", got, text, took)
	}
	if got, text := g.probe("one", "/ok"); got != errored {
		t.Errorf("asked again: %s %q, want Errored", got, text)
	}
	if err := syscall.Kill(worker, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if got, text := g.probe(patient, "/ok"); got != success {
			t.Errorf("after it continues: %s %q, want Success", got, text)
		}
	}
}

// TestDiesBeforeItReads kills a worker that was stopped before: its unread requests go to the next worker.
func TestDiesBeforeItReads(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "serves")
	g.waitReady()
	g.stop()
	var group sync.WaitGroup
	for id, path := range map[string]string{"hook": "/hook", patient: "/ok"} {
		group.Go(func() {
			if got, text := g.probe(id, path); got != success {
				t.Errorf("%s: %s %q, want Success by the next worker", id, got, text)
			}
		})
	}
	if got, text := g.probe("one", "/ok"); got != errored { // the others arrived before
		t.Errorf("a worker that has stopped: %s %q, want Errored", got, text)
	}
	if calls, err := os.ReadFile(g.hooks); err == nil {
		t.Fatalf("the hook was called: %q", calls)
	}
	g.kill()
	group.Wait()
	g.calledOnce()
}

// stop stops all threads of the worker.
func (g *guarded) stop() {
	g.t.Helper()
	worker := g.worker()
	if err := syscall.Kill(worker, syscall.SIGSTOP); err != nil {
		g.t.Fatal(err)
	}
	wait.Until(g.t, "", func() error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", worker))
		for _, thread := range threads {
			if stat, err := os.ReadFile(thread); err == nil && !strings.Contains(string(stat), ") T ") {
				return fmt.Errorf("a thread runs: %s", stat)
			}
		}
		return err
	})
}

func TestHookIsCalledOnce(t *testing.T) {
	t.Parallel()
	for _, action := range []string{"die", "stop"} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			g := startGuard(t, "serves")
			g.waitReady()
			answered := make(chan string, 1)
			go func() {
				got, text := g.probe("hook", "/hook?"+action)
				answered <- fmt.Sprint(got, " ", text)
			}()
			if action == "stop" {
				wait.Until(t, "", func() error {
					_, err := os.Stat(g.hooks)
					return err
				})
				g.kill()
			}
			if got := <-answered; !strings.HasPrefix(got, string(errored)) {
				t.Errorf("a hook that had begun: %s, want an answer, which is enough for the kubelet", got)
			}
			g.logged("worker ended during a hook.*hook")
			g.waitReady()
			g.calledOnce()
		})
	}
}

func TestHookWaitsForAWorker(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "slow again")
	g.waitReady()
	g.kill()
	g.logged("worker ended")
	if got, text := g.probe("hook", "/hook?slow"); got != success {
		t.Errorf("hook without a worker: %s %q, want a call", got, text)
	}
	g.calledOnce()
}

func (g *guarded) calledOnce() {
	g.t.Helper()
	if calls, err := os.ReadFile(g.hooks); err != nil || strings.Count(string(calls), "\n") != 1 {
		g.t.Errorf("calls of the hook = %q, %v, want one", calls, err)
	}
}
