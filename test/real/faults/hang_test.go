package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestEnvoyHangs hangs the Envoy of one of two replicas under load. The agent restarts Envoy, and no call waits for
// longer than the detection takes.
func TestEnvoyHangs(t *testing.T) {
	tests := map[string]struct {
		hang func(t *testing.T, pid int)
		says string
	}{
		"all of it":  {func(t *testing.T, pid int) { must.Do(t, syscall.Kill(pid, syscall.SIGSTOP)) }, "main thread has not run for"},
		"one worker": {hangWorker, "signal: aborted"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, 0)
			proxies := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}},
				harness.ProxyOptions{Name: "b-1", Service: "b"}, harness.ProxyOptions{Name: "b-2", Service: "b"})
			a, b1, b2 := proxies[0], proxies[1], proxies[2]
			endpoints(t, a, "b", b1, b2)
			const callers = 2
			var patients []harness.Caller
			for _, c := range httpCallers(a, "b") {
				patients = append(patients, patient{c})
			}
			load := startLoad(t, patients...)
			reaches(t, load, b1.Name)
			reaches(t, load, b2.Name)

			pid, err := b1.EnvoyPID()
			must.Do(t, err)
			began := time.Now()
			tc.hang(t, pid)
			must.Log(t, b1.Agent, "envoy exited, restarting it", tc.says)
			took := time.Since(began)
			must.Do(t, b1.WaitReady(t.Context()))
			t.Logf("the agent killed Envoy after %s, and it was ready after %s", took, time.Since(began))
			reaches(t, load, b1.Name)
			// A hanging thread loses the calls that it holds, at most one per caller; no other call
			// fails.
			r := load.Stop()
			t.Logf("load: %s", r)
			if r.Failed > callers {
				t.Errorf("%d calls failed, want at most one per caller: %s", r.Failed, r)
			}
		})
	}
}

// patient has a longer timeout than the agent's detection: after a shorter timeout, a caller would call again and
// lose that call, too.
type patient struct{ harness.Caller }

// Call implements harness.Caller.
func (p patient) Call(ctx context.Context) (string, error) {
	return p.Caller.Call(context.WithoutCancel(ctx))
}

// hangWorker stops one worker thread of an Envoy until the test ends.
func hangWorker(t *testing.T, pid int) {
	t.Helper()
	comms, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
	must.Do(t, err)
	for _, path := range comms {
		if comm, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(comm), "wrk:worker_0") {
			continue
		}
		thread, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		must.Do(t, err)
		traced, gone := make(chan error), make(chan struct{})
		go func() {
			defer close(gone)
			runtime.LockOSThread() // ptrace requires calls from the same thread
			defer runtime.UnlockOSThread()
			traced <- syscall.PtraceAttach(thread)
			for { // the thread stops, and later ends with its process
				var status syscall.WaitStatus
				if _, err := syscall.Wait4(thread, &status, unix.WALL, nil); err != nil || !status.Stopped() {
					return
				}
			}
		}()
		t.Cleanup(func() {
			_ = syscall.Kill(pid, syscall.SIGKILL) // no effect after its end
			<-gone
		})
		must.Do(t, <-traced)
		return
	}
	t.Fatalf("Envoy %d has no worker among %q", pid, comms)
}
