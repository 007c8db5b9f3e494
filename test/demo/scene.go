package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/test/demo/board"
	"github.com/sonde-mesh/sonde/test/harness"
)

// scene is the mesh of the demo: A, which makes calls, three replicas of B, and C, which has no
// sidecar.
type scene struct {
	board   *board.Board
	machine *harness.Machine
	a       *harness.Proxy
	b       []*harness.Proxy
	c       string // address of C

	// written is b-1 as a pod whose probes use the application; injected is the injector's result, whose probes use
	// the agent, at virtual.
	written, injected *corev1.Pod
	virtual           string
}

// step is one row of the table.
type step struct {
	title string
	do    func(context.Context) ([]string, error)
}

// stepLimit is the timeout of a step, on a busy machine.
const stepLimit = 2 * time.Minute

func (s step) bounded(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	return s.do(ctx)
}

func (s *scene) steps(programs harness.Programs) []step {
	start := func(ctx context.Context) ([]string, error) { return s.start(ctx, programs) }
	return []step{
		{"control plane, A and three replicas of B start", start},
		{probed + ": its application runs", s.probesUp},
		{probed + ": its application has stopped", s.probesClosed},
		{"A calls B", s.call},
		{"the same call without a certificate", s.withoutCertificate},
		{"a service without a sidecar, C, is called", s.withoutSidecar},
		{"b-3 is terminated by SIGTERM", s.terminate},
		{"b-2: agent, Envoy, application killed with -9", s.kill},
		{"a broken file in the store", s.brokenFile},
		{"the control plane is killed with -9", s.loseControlPlane},
		{"the control plane restarts", s.regainControlPlane},
	}
}

// drainTime of the proxies: long enough to see that a drain ends earlier.
const drainTime = 10 * time.Second

func (s *scene) start(ctx context.Context, programs harness.Programs) ([]string, error) {
	var err error
	s.machine, err = harness.Start(ctx, harness.Options{Programs: programs, Progress: s.board.Progress})
	if err != nil {
		return nil, err
	}
	if s.c, err = s.machine.FreeAddress(); err != nil {
		return nil, err
	}
	if _, err := s.machine.StartApp(ctx, "c-1", "http", s.c); err != nil {
		return nil, err
	}
	host, port, _ := strings.Cut(s.c, ":")
	if err := s.machine.Put("c.yaml", fmt.Sprintf(`type: Service
mesh: default
name: c
protocol: http
endpoints:
  - address: %s
    port: %s
`, host, port)); err != nil {
		return nil, err
	}
	checked := map[string]any{"httpGet": map[string]any{"path": "/healthz"}, "periodSeconds": 1, "failureThreshold": 1}
	options := []harness.ProxyOptions{{Name: "a-1", Service: "a", Outbound: []string{"b", "c"}, ServiceProbe: checked}}
	for _, name := range []string{"b-1", "b-2", "b-3"} {
		options = append(options, harness.ProxyOptions{Name: name, Service: "b", ServiceProbe: checked})
	}
	var proxies []*harness.Proxy
	for _, o := range options {
		o.AgentArgs = []string{"--drain-time=" + drainTime.String()}
		p, err := s.machine.Prepare(o)
		if err != nil {
			return nil, err
		}
		proxies = append(proxies, p)
	}
	s.a, s.b = proxies[0], proxies[1:]
	if err := s.prepareProbes(s.b[0]); err != nil {
		return nil, err
	}
	if err := s.machine.Launch(ctx, proxies...); err != nil {
		return nil, err
	}
	var seen []string
	for _, p := range proxies {
		pid, err := p.EnvoyPID()
		if err != nil {
			return seen, err
		}
		seen = append(seen, fmt.Sprintf("%s is ready: application at %s, its Envoy at %s (pid %d)", p.Name, p.AppAddress, p.Inbound, pid))
	}
	return seen, s.waitEndpoints(ctx, s.b...)
}

// waitEndpoints waits until the Envoy of A has exactly these replicas of B.
func (s *scene) waitEndpoints(ctx context.Context, want ...*harness.Proxy) error {
	return harness.Poll(ctx, "the endpoints of B in the Envoy of A", func(ctx context.Context) error {
		got, err := s.a.Endpoints(ctx, "b")
		if err != nil {
			return err
		}
		if len(got) != len(want) {
			return fmt.Errorf("envoy has %d, want %d", len(got), len(want))
		}
		for _, p := range want {
			if _, ok := got[p.Inbound]; !ok {
				return fmt.Errorf("%s is not among them", p.Name)
			}
		}
		return nil
	})
}

// waitDisconnected waits until the Envoy of A has closed its connections to a dead replica of B.
func (s *scene) waitDisconnected(ctx context.Context, dead *harness.Proxy) error {
	return harness.Poll(ctx, "the end of A's connections to "+dead.Name, func(ctx context.Context) error {
		endpoints, err := s.a.Endpoints(ctx, "b")
		if n := endpoints[dead.Inbound].Connections; err == nil && n > 0 {
			err = fmt.Errorf("envoy has %d", n)
		}
		return err
	})
}

// url is the address of a service for A: at A's own Envoy.
func (s *scene) url(service string) string { return "http://" + s.a.Outbounds[service] + "/" }

// load calls B from A, over new connections and over kept connections.
func (s *scene) load(ctx context.Context) *harness.Load {
	var callers []harness.Caller
	for _, keep := range []bool{false, false, true, true} {
		callers = append(callers, harness.NewHTTPCaller(s.url("b"), keep, false))
	}
	return harness.StartLoad(ctx, 5*time.Millisecond, callers...)
}

// settle continues a load for a while, and returns the calls of that time.
func settle(ctx context.Context, load *harness.Load, length time.Duration) harness.Report {
	before := load.Report()
	select {
	case <-ctx.Done():
	case <-time.After(length):
	}
	after := load.Report()
	after.Calls -= before.Calls
	after.Failed -= before.Failed
	for instance, n := range before.Instances {
		after.Instances[instance] -= n
	}
	for reason, n := range before.Reasons {
		after.Reasons[reason] -= n
	}
	return after
}

// none returns an error if a call failed, or if there was no call.
func none(r harness.Report) error {
	if r.Failed > 0 || r.Calls == 0 {
		return fmt.Errorf("want calls, none of which fails: %s", r)
	}
	return nil
}

// restart restarts a replica of which all processes were ended.
func (s *scene) restart(ctx context.Context, p *harness.Proxy) error {
	if p.App.Running() {
		p.App.Kill()
	}
	if err := p.StartApp(ctx); err != nil {
		return err
	}
	if err := p.StartAgent(ctx); err != nil {
		return err
	}
	return p.WaitReady(ctx)
}

func (s *scene) close() error {
	if s.machine == nil {
		return nil
	}
	return s.machine.Close()
}
