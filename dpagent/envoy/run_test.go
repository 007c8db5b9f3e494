package envoy_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/dpagent/envoy"
	"github.com/sonde-mesh/sonde/dpagent/workdir"
	"github.com/sonde-mesh/sonde/internal/testing/envoytest"
	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// running is an Envoy that Run keeps running.
type running struct {
	*envoy.Envoy
	launcher *envoytest.Launcher
	metrics  *prometheus.Registry
	logs     *logtest.Buffer
	versions []string // before each start
	changes  []error  // calls of Options.Changed
	stop     func()
}

// start runs an Envoy until the test ends. change may change the options and the launcher.
func start(t *testing.T, change func(*envoy.Options, *envoytest.Launcher)) *running {
	t.Helper()
	dir, err := workdir.Open(filepath.Join(t.TempDir(), "work"))
	if err != nil {
		t.Fatal(err)
	}
	r := &running{launcher: envoytest.New(virtual.NewNetwork()), metrics: prometheus.NewRegistry(), logs: &logtest.Buffer{}}
	o := envoy.Options{
		Path: "/usr/bin/envoy", Dir: dir, Restore: func() error { return nil }, Logger: slog.New(slog.NewTextHandler(r.logs, nil)), Registerer: r.metrics,
		Changed: func(err error) { r.changes = append(r.changes, err) }, Launcher: r.launcher, Dial: r.launcher.Dial,
	}
	if change != nil {
		change(&o, r.launcher)
	}
	r.Envoy = envoy.New(o)
	if err := r.Alive(t.Context()); err != nil || r.Running() == nil {
		t.Errorf("before Run: alive %v, running %v", err, r.Running())
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, func(version string) { r.versions = append(r.versions, version) }) }()
	stopped := false
	r.stop = func() {
		cancel()
		if err := <-ended; err != nil || stopped {
			t.Errorf("Run() = %v", err)
		}
		stopped = true
	}
	t.Cleanup(func() {
		if !stopped {
			r.stop()
		}
		if err := dir.Close(); err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return r
}

// staysAlive checks each minute that Envoy stays alive.
func (r *running) staysAlive(t *testing.T, during time.Duration) {
	t.Helper()
	for range int(during / time.Minute) {
		time.Sleep(time.Minute)
		if r.Running() != nil || r.Alive(t.Context()) != nil {
			t.Fatalf("killed: %s", r.logs)
		}
	}
}

// moment lies between two checks of a process, which come each second.
const moment = 500 * time.Millisecond

// TestHangs changes the state of an Envoy after half a minute.
func TestHangs(t *testing.T) {
	const limit = time.Minute
	tests := map[string]struct {
		state  envoytest.State
		silent bool          // Envoy never opens its sockets
		killed time.Duration // time after which Envoy is killed; 0 for never
		want   string        // in the reason
	}{
		"answers, and does not run":            {state: envoytest.State{Still: true}},
		"stopped":                              {state: envoytest.Stopped, killed: 3 * time.Second, want: "main thread has not run for 3s: "},
		"stopped, without sockets":             {state: envoytest.Stopped, silent: true, killed: 5 * moment, want: "main thread has not run for 3s: "},
		"busy":                                 {state: envoytest.State{Hung: true, Busy: true}, killed: limit + time.Second, want: "no answer for 1m1s: "},
		"wakes, and does not answer":           {state: envoytest.State{Hung: true}, killed: limit + time.Second, want: "no answer for 1m1s: "},
		"wakes, and has not opened its socket": {silent: true, killed: limit/2 + 3*moment, want: "no answer for 1m1s: "},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			r := start(t, func(_ *envoy.Options, l *envoytest.Launcher) {
				l.Begin = func(p *envoytest.Process) {
					if tc.silent && p.PID() == 1000 {
						p.SetSilent()
					}
				}
			})
			time.Sleep(limit/2 + moment)
			p := r.launcher.Last()
			p.SetState(tc.state)
			if tc.killed == 0 {
				r.staysAlive(t, 10*time.Minute)
				return
			}
			changed := time.Now()
			select {
			case <-p.Ended():
			case <-wait.Context(t).Done():
				t.Fatalf("envoy still runs: %s", r.logs)
			}
			if took := time.Since(changed); took != tc.killed {
				t.Errorf("killed after %s, want %s", took, tc.killed)
			}
			synctest.Wait()
			if err := r.Running(); err == nil || !strings.HasPrefix(err.Error(), "envoy hung and was killed: "+tc.want) {
				t.Errorf("Running() = %v, want %q", err, tc.want)
			}
			time.Sleep(10 * time.Second)
			if err := errors.Join(r.Running(), r.Ready(t.Context())); err != nil || len(r.launcher.All()) != 2 {
				t.Errorf("the next one of %d: %v", len(r.launcher.All()), err)
			}
			if n := counter(t, r.metrics, "sonde_dpagent_envoy_hangs_total"); n != 1 {
				t.Errorf("%v hangs are counted, want 1", n)
			}
		})
	}
}

func counter(t *testing.T, r *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// TestAliveUntilNothingHelps checks that Alive fails only for failures that a restart of the agent may fix.
func TestAliveUntilNothingHelps(t *testing.T) {
	const limit = 30 * time.Second
	alive := func(t *testing.T, r *running, after time.Duration, want string) {
		t.Helper()
		time.Sleep(after)
		if err := r.Alive(t.Context()); (err != nil) != (want != "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Alive() = %v, want %q", err, want)
		}
	}
	virtual.Run(t, "it does not end", func(t *testing.T) {
		r := start(t, func(o *envoy.Options, _ *envoytest.Launcher) { o.HangLimit = limit })
		time.Sleep(moment) // the first request comes half a second later
		p := r.launcher.Last()
		p.SetState(envoytest.State{Hung: true, Busy: true, Undead: true})
		alive(t, r, limit+5*time.Second, "")
		alive(t, r, time.Second, "envoy has not answered for 36s and cannot be killed")
		p.Exit("signal: killed")
		synctest.Wait()
		alive(t, r, 0, "")
	})
	virtual.Run(t, "it is not started again", func(t *testing.T) {
		restored := make(chan struct{})
		r := start(t, func(o *envoy.Options, _ *envoytest.Launcher) {
			o.HangLimit, o.Restore = limit, func() error {
				<-restored // as with a hanging disk
				return nil
			}
		})
		r.launcher.Last().Exit("signal: killed")
		synctest.Wait()
		alive(t, r, limit, "")
		alive(t, r, time.Second, "envoy ended 31s ago and was not started again: run envoy: signal: killed")
		close(restored)
		synctest.Wait()
		alive(t, r, 0, "")
	})
	virtual.Run(t, "it ends again and again", func(t *testing.T) {
		r := start(t, func(o *envoy.Options, l *envoytest.Launcher) {
			o.HangLimit, l.Begin = limit, func(p *envoytest.Process) { p.Exit("exit status 1") }
		})
		for range 600 {
			alive(t, r, time.Second, "")
		}
	})
}

// TestStartedAgain ends an Envoy in several ways, and then replaces the binary.
func TestStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		restored := 0
		r := start(t, func(o *envoy.Options, _ *envoytest.Launcher) {
			o.Restore = func() error {
				restored++
				return nil
			}
		})
		time.Sleep(2 * time.Minute)
		p := r.launcher.Last()
		p.Print("critical|main|std::bad_alloc called")
		p.Exit("signal: aborted")
		r.launcher.SetVersion("1.39.3")
		synctest.Wait()
		want := "run envoy: signal: aborted; last error in its log: std::bad_alloc called"
		if err := r.Running(); err == nil || err.Error() != want {
			t.Errorf("Running() = %v, want %s", err, want)
		}
		time.Sleep(time.Second)
		if err := r.Ready(t.Context()); err != nil {
			t.Errorf("Ready() = %v", err)
		}
		time.Sleep(time.Second) // Envoy answers a request
		synctest.Wait()
		if len(r.changes) != 2 || r.changes[0].Error() != want || r.changes[1] != nil {
			t.Errorf("changes are %v, want the reason and nil", r.changes)
		}
		if versions := strings.Join(r.versions, " "); versions != "1.40.0 1.39.3" || restored != 1 {
			t.Errorf("versions %s, restored %d times", versions, restored)
		}
		if n := counter(t, r.metrics, "sonde_dpagent_envoy_starts_total"); n != 2 {
			t.Errorf("%v starts are counted, want 2", n)
		}
		r.launcher.Last().SetState(envoytest.Stopped)
		began := time.Now()
		r.stop()
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("an Envoy that ignores SIGTERM was stopped after %s, want 2s", took)
		}
		if n := counter(t, r.metrics, "sonde_dpagent_envoy_running"); n != 0 {
			t.Errorf("%v run", n)
		}
	})
}

// TestDelaysGrow ends each Envoy at once. An Envoy that runs for a minute resets the delay.
func TestDelaysGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ends atomic.Bool
		ends.Store(true)
		r := start(t, func(_ *envoy.Options, l *envoytest.Launcher) {
			l.Begin = func(p *envoytest.Process) {
				if ends.Load() {
					p.Exit("exit status 1")
				}
			}
		})
		pause := func() time.Duration {
			t.Helper()
			synctest.Wait()
			ended, n := time.Now(), len(r.launcher.All())
			wait.For(t, "another Envoy", func() bool { return len(r.launcher.All()) > n })
			return time.Since(ended)
		}
		first := pause()
		for range 10 {
			pause()
		}
		ends.Store(false)
		longest := pause()
		if first > time.Second || longest < 5*time.Second {
			t.Errorf("the first pause was %s, the last %s", first, longest)
		}
		time.Sleep(time.Minute)
		r.launcher.Last().Exit("signal: killed")
		if again := pause(); again > time.Second {
			t.Errorf("after a minute the pause was %s", again)
		}
	})
}
