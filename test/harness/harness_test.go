package harness

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPortsAreHandedOutOnce(t *testing.T) {
	seen := map[string]bool{}
	for range 2 { // two harnesses at the same time
		p, err := newPorts()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = p.close() }()
		for range 40 {
			at, err := p.takeAddress()
			if err != nil {
				t.Fatal(err)
			}
			if seen[at] {
				t.Errorf("%s was handed out twice", at)
			}
			seen[at] = true
		}
	}
}

func TestPortsEnd(t *testing.T) {
	p, err := newPorts()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.close() }()
	for range blockSize {
		if _, err = p.take(); err != nil {
			return
		}
	}
	t.Error("take() returned more ports than the block has")
}

// sleeper starts a process that starts a child and then waits.
func sleeper(t *testing.T, s *spawner) *Process {
	t.Helper()
	dir := t.TempDir()
	p, err := s.startProcess("sleeper", filepath.Join(dir, "log"), dir, nil, "/bin/sh", "-c", "sleep 60 & echo ready; wait")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-p.PID(), syscall.SIGKILL) }) // the process group
	err = Poll(t.Context(), "its child", func(context.Context) error {
		children, err := p.Children("sleep")
		if err == nil && len(children) != 1 {
			err = errors.New("not started yet")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if pids, err := below(dir); err != nil || len(pids) != 2 {
		t.Errorf("below() = %v, %v, want two processes", pids, err)
	}
	return p
}

func TestProcess(t *testing.T) {
	s := newSpawner()
	defer s.close()
	p := sleeper(t, s)
	if !p.Running() {
		t.Error("Running() = false, want true")
	}
	if err := p.Terminate(t.Context()); err == nil || !strings.Contains(err.Error(), "signal: terminated") {
		t.Errorf("Terminate() error = %v, want how it ended", err)
	}
	if p.Running() {
		t.Error("Running() = true after its end")
	}
	if log := p.tail(5); log != "ready" {
		t.Errorf("the log is %q", log)
	}
	p.Kill() // no effect: the process has ended
}

func TestProcessThatDoesNotEnd(t *testing.T) {
	s := newSpawner()
	defer s.close()
	dir := t.TempDir()
	p, err := s.startProcess("stubborn", filepath.Join(dir, "log"), dir, nil, "/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
	if err != nil {
		t.Fatal(err)
	}
	if err := Poll(t.Context(), "it", func(context.Context) error {
		if p.tail(1) != "ready" {
			return errors.New("not ready")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Terminate(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Terminate() error = %v, want %v", err, context.DeadlineExceeded)
	}
	p.Kill()
}

// helperDir is set in a second process of this test binary. That process starts a program in the directory and waits
// until the test kills it.
const helperDir = "SONDE_HARNESS_HELPER_DIR"

func TestProcessesEndWithTheProgram(t *testing.T) {
	dir := os.Getenv(helperDir)
	if dir != "" {
		s := newSpawner()
		if _, err := s.startProcess("sleeper", filepath.Join(dir, "log"), dir, nil, "/bin/sleep", "60"); err != nil {
			t.Fatal(err)
		}
		select {}
	}
	dir = t.TempDir()
	helper := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	helper.Env = append(os.Environ(), helperDir+"="+dir)
	if err := helper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = helper.Wait() }()
	defer func() { _ = helper.Process.Kill() }()
	count := func(want int) func(context.Context) error {
		return func(context.Context) error {
			pids, err := below(dir)
			if err == nil && len(pids) != want {
				err = fmt.Errorf("there are %v", pids)
			}
			return err
		}
	}
	if err := Poll(t.Context(), "the process", count(1)); err != nil {
		t.Fatal(err)
	}
	if err := helper.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := Poll(t.Context(), "its end", count(0)); err != nil {
		t.Error(err)
	}
}

func TestPoll(t *testing.T) {
	notYet := errors.New("not yet")
	tests := map[string]struct {
		deadline time.Duration // 0 means no deadline
		comes    int           // number of the call that succeeds
		err      error         // error of the earlier calls
		took     time.Duration
		want     string
	}{
		"the third call":            {0, 3, notYet, 40 * time.Millisecond, ""},
		"never, without a deadline": {0, -1, notYet, patience, "wait for it for 5m0s: not yet"},
		"never, with a deadline":    {time.Hour, -1, notYet, time.Hour, "wait for it for 1h0m0s: not yet"},
		"hopeless":                  {0, -1, errHopeless, 0, "wait for it: it has ended"},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			ctx, began, calls := t.Context(), time.Now(), 0
			if tc.deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, tc.deadline)
				defer cancel()
			}
			err := Poll(ctx, "it", func(context.Context) error {
				if calls++; calls == tc.comes {
					return nil
				}
				return tc.err
			})
			if got := fmt.Sprint(err); (tc.want == "") != (err == nil) || err != nil && got != tc.want {
				t.Errorf("Poll() error = %v, want %q", err, tc.want)
			}
			if took := time.Since(began); took != tc.took {
				t.Errorf("it took %s, want %s", took, tc.took)
			}
		})
	}
}

func TestLoadCounts(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/bad" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(`{"instance":"one"}`))
	}))
	defer server.Close()
	load := StartLoad(t.Context(), 0, NewHTTPCaller(server.URL, true, false), NewHTTPCaller(server.URL+"/bad", false, false))
	err := Poll(t.Context(), "calls of both kinds", func(context.Context) error {
		if r := load.Report(); r.Failed < 3 || r.Instances["one"] < 3 {
			return errors.New(r.String())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	r := load.Stop()
	if r.Calls != r.Failed+r.Instances["one"] || len(r.Reasons) != 1 {
		t.Errorf("report %+v does not add up", r)
	}
	if !strings.Contains(r.String(), "answers 503") {
		t.Errorf("String() = %q does not name the reason", r)
	}
	if again := load.Report(); again.Calls != r.Calls {
		t.Errorf("a load that is stopped made %d more calls", again.Calls-r.Calls)
	}
}
