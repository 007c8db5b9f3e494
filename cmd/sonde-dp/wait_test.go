package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/dpagent"
	"github.com/sonde-mesh/sonde/health"
)

// runWait runs the command as the hook does.
func runWait(t *testing.T, args ...string) error {
	t.Helper()
	cmd := newCommand(noGuard)
	cmd.SetArgs(append([]string{"wait"}, args...))
	return cmd.ExecuteContext(t.Context())
}

// agentAt serves an agent's health on a new address, and returns that.
func agentAt(t *testing.T, checks *health.Registry) string {
	t.Helper()
	server := httptest.NewServer(health.Handler(checks, http.NotFoundHandler()))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func TestWaitReturnsWhenTheAgentIsReady(t *testing.T) {
	var asked atomic.Int32
	ready := health.New(health.Options{})
	ready.Add(health.Readyz, health.Check{Name: dpagent.CheckEnvoy, Keep: 1, Run: func(context.Context) error {
		if asked.Add(1) < 4 {
			return errors.New("no listeners yet")
		}
		return nil
	}})
	if err := runWait(t, "--admin-addr", agentAt(t, ready)); err != nil {
		t.Fatalf("wait = %v", err)
	}
	if got := asked.Load(); got != 4 {
		t.Errorf("the agent was asked %d times, want 4: until it was ready, and no more", got)
	}
}

func TestWaitForAnAgentThatStartsLater(t *testing.T) {
	listener, err := net.Listen("tcp", loopback7+":0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- wait(t.Context(), address, time.Minute, true) }()
	if listener, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	ready := health.New(health.Options{})
	ready.Add(health.Readyz, passing(dpagent.CheckEnvoy))
	server := &http.Server{Handler: health.Handler(ready, http.NotFoundHandler())}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	if err := <-done; err != nil {
		t.Errorf("wait = %v", err)
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

// passing returns a check that passes.
func passing(name string) health.Check {
	return health.Check{Name: name, Run: func(context.Context) error { return nil }}
}

// TestWaitForEndpoints waits until other proxies know of the endpoints, and not for other warnings.
func TestWaitForEndpoints(t *testing.T) {
	var asked atomic.Int32
	ready := health.New(health.Options{})
	ready.Add(health.Readyz, passing(dpagent.CheckEnvoy))
	ready.Add(health.Readyz, health.Check{Name: "other", Informational: true, Run: func(context.Context) error { return errors.New("odd") }})
	ready.Add(health.Readyz, health.Check{Name: dpagent.CheckEndpoints, Keep: 1, Informational: true, Run: func(context.Context) error {
		if asked.Add(1) < 4 {
			return errors.New("not told yet")
		}
		return nil
	}})
	if err := runWait(t, "--admin-addr", agentAt(t, ready)); err != nil {
		t.Fatalf("wait = %v", err)
	}
	if got := asked.Load(); got != 4 {
		t.Errorf("the agent was asked %d times, want 4", got)
	}
	asked.Store(-100)
	if err := runWait(t, "--endpoints=false", "--admin-addr", agentAt(t, ready)); err != nil {
		t.Fatalf("wait --endpoints=false = %v", err)
	}
}

func TestWaitFails(t *testing.T) {
	never := health.New(health.Options{})
	never.Add(health.Readyz, health.Check{Name: "identity", Run: func(context.Context) error { return errors.New("join: the token has expired") }})
	never.Add(health.Readyz, health.Check{Name: "envoy", Run: func(context.Context) error { return errors.New("not started") }})
	never.Add(health.Readyz, health.Check{Name: "drain", Run: func(context.Context) error { return nil }})
	unpublished := health.New(health.Options{})
	unpublished.Add(health.Readyz, passing(dpagent.CheckEnvoy))
	unpublished.Add(health.Readyz, health.Check{Name: dpagent.CheckEndpoints, Informational: true, Run: func(context.Context) error { return errors.New("not told yet") }})
	controlPlane, other := health.New(health.Options{}), health.New(health.Options{})
	for _, name := range []string{"draining", "synced", "view", "xds"} {
		controlPlane.Add(health.Readyz, passing(name))
	}
	other.Add(health.Readyz, passing("ping"))
	other.Add(health.Readyz, passing("log"))
	stranger := httptest.NewServer(http.NotFoundHandler())
	defer stranger.Close()
	tests := map[string]struct {
		args []string
		want string
	}{
		"not ready in time": {
			[]string{"--admin-addr", agentAt(t, never), "--timeout", "2s"},
			"not ready after 2s: identity failed: join: the token has expired; envoy failed: not started",
		},
		"others do not know of it": {[]string{"--admin-addr", agentAt(t, unpublished), "--timeout", "2s"}, "not ready after 2s: endpoints warning: not told yet"},
		"a control plane": {
			[]string{"--admin-addr", agentAt(t, controlPlane)}, ": a control plane answers there, and no agent: --admin-addr must be that of sonde-dp run",
		},
		"another program": {
			[]string{"--admin-addr", agentAt(t, other)}, ": a program with the checks ping, log answers there, and no agent: --admin-addr must be that of sonde-dp run",
		},
		"nobody there":     {[]string{"--admin-addr", "127.0.0.1:1", "--timeout", "2s"}, "connection refused"},
		"not an agent":     {[]string{"--admin-addr", stranger.Listener.Addr().String(), "--timeout", "2s"}, "404 Not Found, as no agent does"},
		"no address":       {[]string{"--admin-addr", "agent"}, `--admin-addr: "agent": must be the host:port`},
		"a port of chance": {[]string{"--admin-addr", "127.0.0.1:0"}, `--admin-addr: "127.0.0.1:0": must be`},
		"no time":          {[]string{"--timeout", "0s"}, `--timeout: "0s": must be more than 0`},
		"an argument":      {[]string{"now"}, `unknown command "now"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if err := runWait(t, tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("wait = %v, want %q", err, tc.want)
			}
		})
	}
}

func TestWaitStartsAnyway(t *testing.T) {
	never := health.New(health.Options{})
	never.Add(health.Readyz, health.Check{Name: "identity", Run: func(context.Context) error { return errors.New("join: no control plane") }})
	never.Add(health.Readyz, passing(dpagent.CheckEnvoy))
	cmd := newCommand(noGuard)
	var said strings.Builder
	cmd.SetErr(&said)
	cmd.SetArgs([]string{"wait", "--admin-addr", agentAt(t, never), "--timeout", "2s", "--start-anyway"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Errorf("wait = %v, want success", err)
	}
	if want := "not ready after 2s: identity failed: join: no control plane"; !strings.Contains(said.String(), want) {
		t.Errorf("it says %q, want %q", said.String(), want)
	}
	cmd.SetArgs([]string{"wait", "--timeout", "0s", "--start-anyway"})
	if err := cmd.ExecuteContext(t.Context()); err == nil {
		t.Error("a wrong flag is no error")
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := wait(ctx, "127.0.0.1:1", time.Hour, true); !errors.Is(err, context.Canceled) {
		t.Errorf("wait = %v, want that it was cancelled", err)
	}
}
