package guard_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

func TestAnswersPass(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "serves")
	g.waitReady()
	long := "/head?" + strings.Repeat("x", 90<<10)
	tests := map[string]struct {
		id, path string
		want     verdict
		text     string
	}{
		"success":                  {id: patient, path: "/ok", want: success, text: strconv.Itoa(g.worker()) + " 127.0.0.1:"},
		"unknown ID":               {id: "other", path: "/ok", want: success},
		"no id":                    {path: "/ok", want: success},
		"a hook":                   {id: "hook", path: "/ok", want: success},
		"failure":                  {id: patient, path: "/fail", want: failure, text: "503"},
		"closed by the worker":     {id: patient, path: "/cut", want: failure, text: "EOF"},
		"a slow one":               {id: patient, path: "/first/slow", want: success},
		"hanging worker":           {id: "one", path: "/first/hang", want: errored},
		"a long request":           {id: patient, path: long, want: success, text: strconv.Itoa(len(long))},
		"request that is too long": {id: patient, path: "/" + strings.Repeat("x", 200<<10), want: failure},
		"a long answer":            {id: patient, path: "/long", want: success},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, text := g.probe(tc.id, tc.path)
			if got != tc.want || !strings.Contains(text, tc.text) {
				t.Errorf("verdict = %s %.200q, want %s %q", got, text, tc.want, tc.text)
			}
		})
	}
}

func TestWaitsForTheNextWorker(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		role, id, path string
		want           verdict
		atLeast        time.Duration
	}{
		"before the worker dies":         {role: "serves", id: patient, path: "/first/die", want: success},
		"next worker in time":            {role: "slow again", id: patient, path: "/first/die", want: success, atLeast: slow},
		"next worker too late":           {role: "ready once", id: "one", path: "/first/die", want: errored, atLeast: time.Second},
		"a longer timeout":               {role: "ready once", id: "three", path: "/first/die", want: errored, atLeast: 3 * time.Second},
		"no ID, shortest timeout":        {role: "ready once", path: "/first/die", want: errored, atLeast: time.Second},
		"request that kills each worker": {role: "serves", id: patient, path: "/always/die", want: errored},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := startGuard(t, tc.role)
			g.waitReady()
			started := time.Now()
			got, text := g.probe(tc.id, tc.path)
			const tick = 10 * time.Millisecond // the kernel's receive time of the request is rounded to ticks
			if took := time.Since(started); got != tc.want || took < tc.atLeast-tick {
				t.Errorf("verdict = %s %q after %s, want %s after %s at least", got, text, took, tc.want, tc.atLeast)
			}
		})
	}
}

// TestKilledTwentyTimes compresses a minute of probes: the kubelet's prober would restart nothing.
func TestKilledTwentyTimes(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "serves")
	g.waitReady()
	const kills, asked = 20, 30 // and probes between two kills
	stop := make(chan struct{})
	var mu sync.Mutex
	counts := map[verdict]int{}
	total := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range counts {
			n += c
		}
		return n
	}
	var group sync.WaitGroup
	for path, id := range map[string]string{"/ok": patient, "/first/slow": "one", "/ok?b": "one"} {
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				v, text := g.probe(id, path)
				mu.Lock()
				counts[v]++
				mu.Unlock()
				if v == failure {
					t.Errorf("%s: Failure: %s", path, text)
				}
			}
		})
	}
	for range kills {
		before := total()
		wait.For(t, "probes to be answered", func() bool { return total() >= before+asked })
		g.kill()
	}
	close(stop)
	group.Wait()
	t.Logf("verdicts: %v", counts)
	if counts[success] == 0 {
		t.Error("no Success in all that time")
	}
	g.waitReady()
	if n := strings.Count(g.logs.String(), "worker ended, restarting it"); n != kills {
		t.Errorf("the guard reports %d ended workers, want %d", n, kills)
	}
}

func TestGuardIsKilled(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "serves")
	g.waitReady()
	worker := g.worker()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", g.address) // an open connection does not keep the port open
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := g.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	g.exitCode()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", g.address)
	if err != nil {
		t.Fatalf("the port is not free at once: %v", err)
	}
	defer func() { _ = l.Close() }()
	wait.Until(t, "", func() error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", worker))
		if err == nil && !strings.Contains(string(stat), ") Z ") {
			return fmt.Errorf("worker %d lives", worker)
		}
		return nil
	})
}

func TestSignals(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		role    string
		signals []os.Signal
		code    int
	}{
		"a drain":                      {"serves", []os.Signal{syscall.SIGTERM}, 0},
		"Ctrl-C":                       {"serves", []os.Signal{os.Interrupt}, 0},
		"second signal ends the drain": {"serves", []os.Signal{syscall.SIGTERM, os.Interrupt}, 7},
		"ignored signal":               {"drains for ever", []os.Signal{syscall.SIGTERM, syscall.SIGTERM}, 128 + 9},
		// Shell and kernel may each send a signal.
		"a terminal closes": {"serves", []os.Signal{syscall.SIGHUP, syscall.SIGHUP}, 0},
		"SIGTERM after it":  {"serves", []os.Signal{syscall.SIGHUP, syscall.SIGTERM}, 7},
	}
	// If this test runs under nohup, the guards would ignore SIGHUP, too: a handler prevents that.
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(heard) })
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := startGuard(t, tc.role)
			g.waitReady()
			for n, s := range tc.signals {
				if err := g.cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
				if n > 0 {
					break
				}
				g.logged("worker drains") // the kernel merges two pending signals
				if v, text := g.probe(patient, "/ok"); v != success {
					t.Errorf("probe during the drain: %s %s, want Success", v, text)
				}
			}
			if tc.code == 0 {
				_, _ = g.probe(patient, "/end") // the worker may exit before its response
			}
			if code := g.exitCode(); code != tc.code {
				t.Errorf("exit code = %d, want %d", code, tc.code)
			}
			if err := refused(t.Context(), g.address); err != nil {
				t.Error(err)
			}
			if strings.Contains(g.logs.String(), "restarting it") {
				t.Error("a worker was started during the end")
			}
		})
	}
}

// TestEnd has an open request that the worker never answers. The end of the agent must not become a
// Failure.
func TestEnd(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "serves")
	g.waitReady()
	verdicts := make(chan string, 1)
	go func() {
		v, text := g.probe(patient, "/always/hang")
		verdicts <- string(v) + " " + text
	}()
	wait.Until(t, "", func() error {
		if _, text := g.probe(patient, "/hanging"); text != "1" {
			return errors.New("the request has not arrived")
		}
		return nil
	})
	if err := g.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	g.logged("worker drains")
	_, _ = g.probe(patient, "/end") // the worker may exit before its response
	if v := <-verdicts; !strings.HasPrefix(v, string(errored)) {
		t.Errorf("verdict = %s, want Errored", v)
	}
	if code := g.exitCode(); code != 0 {
		t.Errorf("exit code = %d, want 0", code)
	}
}

// TestEndBeforeAHook shows that a hook fails if no worker has started it: it was not called.
func TestEndBeforeAHook(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "ready once")
	g.waitReady()
	g.kill()
	g.logged("worker ended")
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", g.address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "GET /hook HTTP/1.1\r\nHost: x\r\nSonde-Probe: hook\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if v, text := g.probe("one", "/ok"); v != errored { // the guard receives it after the hook
		t.Fatalf("a probe while no worker answers: %s %s", v, text)
	}
	if err := g.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if answer, _ := io.ReadAll(c); len(answer) > 0 { // a reset is as good as FIN
		t.Errorf("the hook is answered %q, want a connection that ends without an answer", answer)
	}
}

func TestMisconfigured(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "misconfigured")
	if code := g.exitCode(); code != 3 {
		t.Errorf("exit code = %d, want the worker's, 3", code)
	}
	if n := strings.Count(g.logs.String(), "bad option"); n != 1 {
		t.Errorf("the hook was called %d times, want 1", n)
	}
}

func TestNeverReady(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "never ready")
	worker := g.worker()
	for range 20 {
		if err := refused(t.Context(), g.address); err != nil {
			t.Fatalf("before the first worker can answer: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := syscall.Kill(worker, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := g.exitCode(); code != 128+9 {
		t.Errorf("exit code = %d, want the worker's signal", code)
	}
}

func TestPortIsTaken(t *testing.T) {
	t.Parallel()
	first := startGuard(t, "serves")
	first.waitReady()
	g := startAt(t, "serves", first.address)
	if code := g.exitCode(); code != 1 {
		t.Errorf("exit code = %d, want 1", code)
	}
	if text := g.logs.String(); !strings.Contains(text, first.address) || !strings.Contains(text, "address already in use") {
		t.Errorf("logs = %q, want that the address is in use", text)
	}
}

// TestSilentWhileTheWorkerHangs stops the worker: probes are Errored, which the kubelet discards. The agent's own
// liveness probe gets no response, which the kubelet counts; the worker responds when it continues.
func TestSilentWhileTheWorkerHangs(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "serves")
	g.waitReady()
	worker := g.worker()
	g.stop()
	alive := make(chan verdict, 1)
	go func() {
		v, _ := g.probe("kuma-sidecar-liveness", "/ok")
		alive <- v
	}()
	for range 2 {
		if v, text := g.probe("one", "/ok"); v != errored {
			t.Errorf("a probe of a worker that hangs is %s: %s, want Errored", v, text)
		}
	}
	select {
	case v := <-alive:
		t.Errorf("the guard returns %s for a hanging worker, want no response", v)
	default:
	}
	if err := syscall.Kill(worker, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	select {
	case v := <-alive:
		if v != success {
			t.Errorf("the worker returns %s after it continues, want Success", v)
		}
	case <-wait.Context(t).Done():
		t.Fatal("the worker does not respond after it continues")
	}
}

func TestClientLeaves(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "serves")
	g.waitReady()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", g.address)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "GET /leave HTTP/1.1\r\nHost: x\r\nSonde-Probe: hook\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	says := func(want string) {
		t.Helper()
		wait.Until(t, "", func() error {
			if _, text := g.probe(patient, "/left"); text != want {
				return fmt.Errorf("the worker reports that the client %s, want %s", text, want)
			}
			return nil
		})
	}
	says("waits")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	says("left")
}

// TestClientsThatKeepConnections checks that each response closes its connection, as its headers
// announce.
func TestClientsThatKeepConnections(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "serves")
	g.waitReady()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for range 200 {
		answer, err := client.Get("http://" + g.address + "/ok")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
	}
}
