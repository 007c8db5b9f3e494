package main

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/dpagent"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

const (
	host    = "127.0.0.1"
	address = dpagent.DefaultAdminAddress
)

// runWait runs the command like the hook, and returns its output and duration.
func runWait(t *testing.T, n *virtual.Network, args ...string) (said string, took time.Duration, err error) {
	t.Helper()
	cmd, out := newWaitCommand(n.DialFrom(host)), &strings.Builder{}
	cmd.SetErr(out)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	began := time.Now()
	err = cmd.ExecuteContext(t.Context())
	return out.String(), time.Since(began), err
}

// serve serves until the test ends.
func serve(t *testing.T, n *virtual.Network, h http.Handler) {
	t.Helper()
	l, err := n.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server, served := &http.Server{Handler: h}, make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l) // returns http.ErrServerClosed
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
}

// newAgent serves the health endpoints of an agent with these readiness checks.
func newAgent(t *testing.T, n *virtual.Network, checks ...health.Check) {
	t.Helper()
	r := health.New(health.Options{})
	for _, c := range checks {
		r.Add(health.Readyz, c)
	}
	serve(t, n, health.Handler(r, http.NotFoundHandler()))
}

// passing returns a check that passes.
func passing(name string) health.Check {
	return health.Check{Name: name, Run: func(context.Context) error { return nil }}
}

func failing(name, why string) health.Check {
	return health.Check{Name: name, Run: func(context.Context) error { return errors.New(why) }}
}

// warning returns a check whose failure is only a warning.
func warning(name, why string) health.Check {
	c := failing(name, why)
	c.Informational = true
	return c
}

// fourth returns a check that fails three times, then passes.
func fourth(name string) (c health.Check, asked *atomic.Int32) {
	asked = new(atomic.Int32)
	return health.Check{Name: name, Keep: 1, Run: func(context.Context) error {
		if asked.Add(1) < 4 {
			return errors.New("not yet")
		}
		return nil
	}}, asked
}

func TestWaitReturnsWhenTheAgentIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := virtual.NewNetwork()
		check, asked := fourth(dpagent.CheckEnvoy)
		newAgent(t, n, check)
		if _, took, err := runWait(t, n); err != nil || took != 3*waitInterval {
			t.Errorf("wait = %v after %s, want %s", err, took, 3*waitInterval)
		}
		if got := asked.Load(); got != 4 {
			t.Errorf("the agent got %d requests, want 4: none after it is ready", got)
		}
	})
}

func TestWaitForAnAgentThatStartsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const later = time.Minute + time.Millisecond
		n := virtual.NewNetwork()
		time.AfterFunc(later, func() { newAgent(t, n, passing(dpagent.CheckEnvoy)) })
		if _, took, err := runWait(t, n); err != nil || took < later || took > later+waitInterval {
			t.Errorf("wait = %v after %s, want %s", err, took, later)
		}
	})
}

// TestWaitForEndpoints shows that the command waits for the endpoints warning, not for other warnings.
func TestWaitForEndpoints(t *testing.T) {
	for name, tc := range map[string]struct {
		args  []string
		asked int32
	}{
		"by default":        {asked: 4},
		"--endpoints=false": {[]string{"--endpoints=false"}, 1},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			n := virtual.NewNetwork()
			check, asked := fourth(dpagent.CheckEndpoints)
			check.Informational = true
			newAgent(t, n, passing(dpagent.CheckEnvoy), warning("other", "odd"), check)
			if _, _, err := runWait(t, n, tc.args...); err != nil || asked.Load() != tc.asked {
				t.Errorf("wait = %v, the agent got %d requests, want %d", err, asked.Load(), tc.asked)
			}
		})
	}
}

func TestWaitFails(t *testing.T) {
	tests := map[string]struct {
		checks []health.Check // empty: no response
		args   []string
		took   time.Duration
		want   string
	}{
		"not ready in time": {
			[]health.Check{failing("identity", "join: the token has expired"), failing("envoy", "not started"), passing("drain")},
			[]string{"--timeout", "2s"}, 2 * time.Second,
			"not ready after 2s: identity failed: join: the token has expired; envoy failed: not started",
		},
		"others do not know of it": {
			[]health.Check{passing(dpagent.CheckEnvoy), warning(dpagent.CheckEndpoints, "not told yet")}, nil, 2 * time.Minute,
			"not ready after 2m0s: endpoints warning: not told yet",
		},
		"another program at an outbound": {
			[]health.Check{passing(dpagent.CheckEnvoy), warning(dpagent.CheckOutbounds, "envoy refuses the listener at 127.0.0.1:10001: cannot bind")},
			[]string{"--endpoints=false"}, 2 * time.Minute,
			"not ready after 2m0s: outbounds warning: envoy refuses the listener at 127.0.0.1:10001: cannot bind",
		},
		"a control plane": {
			[]health.Check{passing("draining"), passing("synced"), passing("view"), passing("xds")}, nil, 0,
			": a control plane answers there, but is not an agent: --admin-addr must be the value given to sonde-dp run",
		},
		"another program": {
			[]health.Check{passing("ping"), passing("log")}, nil, 0,
			": a program with the checks ping, log answers there, but is not an agent: --admin-addr must be the value given to sonde-dp run",
		},
		"no server":             {nil, []string{"--timeout", "2s"}, 2 * time.Second, "connection refused"},
		"no address":            {nil, []string{"--admin-addr", "agent"}, 0, `--admin-addr: "agent": must be the host:port`},
		"a port of chance":      {nil, []string{"--admin-addr", "127.0.0.1:0"}, 0, `--admin-addr: "127.0.0.1:0": must be`},
		"no time":               {nil, []string{"--timeout", "0s"}, 0, `--timeout: "0s": must be more than 0`},
		"no time, start anyway": {nil, []string{"--timeout", "0s", "--start-anyway"}, 0, `--timeout: "0s": must be more than 0`},
		"an argument":           {nil, []string{"now"}, 0, `unknown command "now"`},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			n := virtual.NewNetwork()
			if tc.checks != nil {
				newAgent(t, n, tc.checks...)
			}
			if _, took, err := runWait(t, n, tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) || took != tc.took {
				t.Errorf("wait = %v after %s, want %q after %s", err, took, tc.want, tc.took)
			}
		})
	}
	virtual.Run(t, "not an agent", func(t *testing.T) {
		n := virtual.NewNetwork()
		serve(t, n, http.NotFoundHandler())
		if _, _, err := runWait(t, n); err == nil || !strings.Contains(err.Error(), "404 Not Found is not an agent's response") {
			t.Errorf("wait = %v", err)
		}
	})
}

func TestWaitStartsAnyway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := virtual.NewNetwork()
		newAgent(t, n, failing("identity", "join: no control plane"), passing(dpagent.CheckEnvoy))
		said, took, err := runWait(t, n, "--timeout", "2s", "--start-anyway")
		if want := "not ready after 2s: identity failed: join: no control plane"; err != nil || took != 2*time.Second || !strings.Contains(said, want) {
			t.Errorf("wait = %v after %s, output %q, want %q", err, took, said, want)
		}
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		if err := dial(virtual.NewNetwork().DialFrom(host)).wait(ctx, address, time.Hour, true); !errors.Is(err, context.Canceled) {
			t.Errorf("wait = %v, want context.Canceled", err)
		}
	})
}
