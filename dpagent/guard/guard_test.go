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
		"success":              {id: "one", path: "/ok", want: success, text: strconv.Itoa(g.worker()) + " 127.0.0.1:"},
		"no such id":           {id: "other", path: "/ok", want: success},
		"no id":                {path: "/ok", want: success},
		"a hook":               {id: "hook", path: "/ok", want: success},
		"failure":              {id: "one", path: "/fail", want: failure, text: "503"},
		"closed by the worker": {id: "one", path: "/cut", want: failure, text: "EOF"},
		"a slow one":           {id: "one", path: "/first/slow", want: success},
		"a worker that hangs":  {id: "one", path: "/first/hang", want: errored},
		"a long request":       {id: "one", path: long, want: success, text: strconv.Itoa(len(long))},
		"one that is too long": {id: "one", path: "/" + strings.Repeat("x", 200<<10), want: failure},
		"a long answer":        {id: "one", path: "/long", want: success},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, text := g.probe(tc.id, tc.path, 2*time.Second)
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
		timeout        time.Duration
		want           verdict
		atLeast        time.Duration
	}{
		"asked before it died":          {role: "serves", id: "patient", path: "/first/die", want: success},
		"the next comes in time":        {role: "slow again", id: "patient", path: "/first/die", want: success, atLeast: 700 * time.Millisecond},
		"the next does not":             {role: "ready once", id: "one", path: "/first/die", want: errored, atLeast: time.Second},
		"a longer timeout":              {role: "ready once", id: "three", path: "/first/die", want: errored, atLeast: 3 * time.Second},
		"of no probe, the shortest one": {role: "ready once", path: "/first/die", want: errored, atLeast: time.Second},
		"what kills each worker":        {role: "serves", id: "three", path: "/always/die", want: errored},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := startGuard(t, tc.role)
			g.waitReady()
			timeout := map[string]time.Duration{"three": 4 * time.Second, "patient": 21 * time.Second}[tc.id]
			timeout = max(timeout, 2*time.Second)
			started := time.Now()
			got, text := g.probe(tc.id, tc.path, timeout)
			const tick = 10 * time.Millisecond // the kernel says in ticks when the request has arrived
			if took := time.Since(started); got != tc.want || took < tc.atLeast-tick {
				t.Errorf("verdict = %s %q after %s, want %s after %s at least", got, text, took, tc.want, tc.atLeast)
			}
		})
	}
}

// TestKilledTwentyTimes is a minute of the kubelet's, compressed: its prober would restart nothing.
func TestKilledTwentyTimes(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "serves")
	g.waitReady()
	const kills, every = 20, 750 * time.Millisecond
	stop := make(chan struct{})
	var mu sync.Mutex
	counts := map[verdict]int{}
	var group sync.WaitGroup
	for _, path := range []string{"/ok", "/first/slow", "/ok?b"} {
		group.Go(func() {
			ticks := time.NewTicker(100 * time.Millisecond)
			defer ticks.Stop()
			for {
				select {
				case <-stop:
					return
				case <-ticks.C:
				}
				group.Go(func() {
					v, text := g.probe("one", path, 2*time.Second)
					mu.Lock()
					defer mu.Unlock()
					counts[v]++
					if v == failure {
						t.Errorf("%s: Failure: %s", path, text)
					}
				})
			}
		})
	}
	ticks := time.NewTicker(every)
	for range kills {
		<-ticks.C
		g.kill()
	}
	ticks.Stop()
	close(stop)
	group.Wait()
	t.Logf("verdicts: %v", counts)
	if counts[success] == 0 {
		t.Error("no Success in all that time")
	}
	g.waitReady()
	if n := strings.Count(g.logs.String(), "worker ended, it will be started again"); n != kills {
		t.Errorf("the guard says that workers ended %d times, want %d", n, kills)
	}
}

func TestGuardIsKilled(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "serves")
	g.waitReady()
	worker := g.worker()
	c, err := net.Dial("tcp", g.address) // one that is open does not keep the port
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := g.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	g.exitCode()
	l, err := net.Listen("tcp", g.address)
	if err != nil {
		t.Fatalf("the port is not free at once: %v", err)
	}
	defer func() { _ = l.Close() }()
	eventually(t, 5*time.Second, func() error {
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
		"a drain":             {"serves", []os.Signal{syscall.SIGTERM}, 0},
		"Ctrl-C":              {"serves", []os.Signal{os.Interrupt}, 0},
		"the second ends":     {"serves", []os.Signal{syscall.SIGTERM, os.Interrupt}, 7},
		"one that is ignored": {"drains for ever", []os.Signal{syscall.SIGTERM, syscall.SIGTERM}, 128 + 9},
		// Shell and kernel may each send one.
		"a terminal closes": {"serves", []os.Signal{syscall.SIGHUP, syscall.SIGHUP}, 0},
		"a hurry after it":  {"serves", []os.Signal{syscall.SIGHUP, syscall.SIGTERM}, 7},
	}
	// If this test was started with nohup, the guards would ignore SIGHUP, too: a listener ends that.
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
				g.logged("worker drains") // the kernel makes one of two signals that wait
				if v, text := g.probe("one", "/ok", 2*time.Second); v != success {
					t.Errorf("probe during the drain: %s %s, want Success", v, text)
				}
			}
			if code := g.exitCode(); code != tc.code {
				t.Errorf("exit code = %d, want %d", code, tc.code)
			}
			if err := refused(g.address); err != nil {
				t.Error(err)
			}
			if strings.Contains(g.logs.String(), "started again") {
				t.Error("a worker was started during the end")
			}
		})
	}
}

func TestSignalWhileNoWorkerRuns(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "serves")
	g.waitReady()
	for range 4 { // the delay grows
		g.kill()
		g.logged("worker ended")
	}
	eventually(t, 20*time.Second, func() error {
		g.kill()
		if len(g.workers()) > 0 {
			return errors.New("a worker runs")
		}
		return nil
	})
	if err := g.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	g.exitCode()
}

// TestEnd asks as the kubelet does: again at once after Errored, three times in all. The end of the agent must not become a
// Failure.
func TestEnd(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "serves")
	g.waitReady()
	verdicts := make(chan string, 1)
	go func() {
		for tries := 0; ; tries++ {
			v, text := g.probe("three", "/always/hang", 4*time.Second)
			if v != errored || tries == 2 {
				verdicts <- string(v) + " " + text
				return
			}
		}
	}()
	eventually(t, 5*time.Second, func() error {
		if _, text := g.probe("one", "/hanging", 2*time.Second); text != "1" {
			return errors.New("the request has not arrived")
		}
		return nil
	})
	if err := g.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if v := <-verdicts; !strings.HasPrefix(v, string(errored)) {
		t.Errorf("verdict = %s, want Errored", v)
	}
	if code := g.exitCode(); code != 0 {
		t.Errorf("exit code = %d, want 0", code)
	}
}

// TestEndBeforeAHook shows that a hook which no worker has begun fails: it was not called.
func TestEndBeforeAHook(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "ready once")
	g.waitReady()
	g.kill()
	g.logged("worker ended")
	c, err := net.Dial("tcp", g.address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "GET /hook HTTP/1.1\r\nHost: x\r\nSonde-Probe: hook\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if v, text := g.probe("one", "/ok", 2*time.Second); v != errored { // the guard has had it after the hook
		t.Fatalf("a probe while no worker answers: %s %s", v, text)
	}
	if err := g.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if answer, _ := io.ReadAll(c); len(answer) > 0 { // a reset is as good as an end
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
		t.Errorf("it was tried %d times, want once", n)
	}
}

func TestNeverReady(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "never ready")
	worker := g.worker()
	for range 20 {
		if err := refused(g.address); err != nil {
			t.Fatalf("before the first worker can answer: %v", err)
		}
		<-time.After(10 * time.Millisecond)
	}
	if err := syscall.Kill(worker, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := g.exitCode(); code != 128+9 {
		t.Errorf("exit code = %d, want that of the worker's signal", code)
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

func TestClientLeaves(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "serves")
	g.waitReady()
	c, err := net.Dial("tcp", g.address)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "GET /leave HTTP/1.1\r\nHost: x\r\nSonde-Probe: hook\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	says := func(want string) {
		t.Helper()
		eventually(t, 20*time.Second, func() error {
			if _, text := g.probe("one", "/left", 2*time.Second); text != want {
				return fmt.Errorf("the worker says that the client %s, want %s", text, want)
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

// TestClientsThatKeepConnections get another one for each request, as is told them in time.
func TestClientsThatKeepConnections(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "serves")
	g.waitReady()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{}}
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
