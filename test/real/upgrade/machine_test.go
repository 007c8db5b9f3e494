package upgrade

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/harness"
)

// probe is that of the application of a server, so that sessions also carry whether it can take traffic.
var probe = map[string]any{"httpGet": map[string]any{"path": "/"}, "periodSeconds": 1}

// shortDrain is for agents that are replaced.
var shortDrain = []string{"--drain-time=2s"}

// mesh is a control plane with proxies, and a client whose calls never fail.
type mesh struct {
	t *testing.T
	*harness.Machine
	client  *harness.Proxy
	servers []*harness.Proxy
	load    *harness.Load
	// root is the CA of the mesh, from the first check on.
	root *x509.Certificate
}

// newMesh starts one of a release, with two servers.
func newMesh(t *testing.T, of harness.Programs) *mesh {
	t.Helper()
	m := &mesh{t: t, Machine: harness.New(t, harness.Options{Programs: of})}
	proxies, err := m.Add(t.Context(),
		harness.ProxyOptions{Name: "server-0", Service: "web", ServiceProbe: probe, AgentArgs: shortDrain},
		harness.ProxyOptions{Name: "server-1", Service: "web", ServiceProbe: probe, AgentArgs: shortDrain},
		harness.ProxyOptions{Name: "client", Service: "client", Outbound: []string{"web"}})
	if err != nil {
		t.Fatal(err)
	}
	m.servers, m.client = proxies[:2], proxies[2]
	caller := harness.NewHTTPCaller("http://"+m.client.Outbounds["web"]+"/", false, false)
	t.Cleanup(caller.Close)
	m.poll("the first answer", func(ctx context.Context) error {
		_, err := caller.Call(ctx)
		return err
	})
	m.load = harness.StartLoad(context.WithoutCancel(t.Context()), 10*time.Millisecond, caller)
	t.Cleanup(func() { m.load.Stop() })
	return m
}

func (m *mesh) poll(what string, check func(ctx context.Context) error) {
	m.t.Helper()
	if err := harness.Poll(m.t.Context(), what, check); err != nil {
		m.t.Fatal(err)
	}
}

// controlPlane replaces the control plane by one of another release, on the state that it has left.
func (m *mesh) controlPlane(of harness.Programs) {
	m.t.Helper()
	m.ControlPlane.Kill()
	m.Use(of)
	if err := m.StartControlPlane(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
}

// agent replaces the agent of a proxy by one of another release, on the work directory that it has left, which is all that it has: its token is no good.
func (m *mesh) agent(p *harness.Proxy, of harness.Programs) {
	m.t.Helper()
	m.Use(of)
	ctx := wait.Context(m.t)
	if err := errors.Join(p.Agent.Terminate(ctx), p.SetToken("none"), p.RunAgent(), p.WaitReady(ctx)); err != nil {
		m.t.Fatal(err)
	}
}

// addServer adds a server with an agent of a release, and waits until the client calls it.
func (m *mesh) addServer(when string, of harness.Programs) {
	m.t.Helper()
	m.Use(of)
	name := fmt.Sprintf("server-%d", len(m.servers))
	more, err := m.Add(m.t.Context(), harness.ProxyOptions{Name: name, Service: "web", ServiceProbe: probe, AgentArgs: shortDrain})
	if err != nil {
		m.t.Fatalf("%s: %v", when, err)
	}
	m.servers = append(m.servers, more...)
	m.answers(when, name)
}

// answers waits until a server answers the client.
func (m *mesh) answers(when, server string) {
	m.t.Helper()
	before := m.load.Report().Instances[server]
	m.poll(when+": an answer of "+server, func(context.Context) error {
		if r := m.load.Report(); r.Instances[server] == before {
			return fmt.Errorf("there is none: %v", r)
		}
		return nil
	})
}

// check looks whether all is in order: each agent has a session and its Envoy all that it should have, calls go on, neither side was sent what it does not
// know, and what was issued is trusted as before.
func (m *mesh) check(when string) {
	m.t.Helper()
	for _, p := range append(slices.Clone(m.servers), m.client) {
		m.poll(when+": the session of "+p.Name, func(ctx context.Context) error { return errors.Join(p.AgentIs(ctx, "CONNECTED"), p.Synced(ctx)) })
		text, err := m.Get(m.t.Context(), "http://"+p.Admin+"/metrics")
		if err != nil {
			m.t.Fatal(err)
		}
		m.knowsAll(when+": "+p.Name, text)
	}
	text, err := m.Get(m.t.Context(), "http://"+m.Health+"/metrics")
	if err != nil {
		m.t.Fatal(err)
	}
	m.knowsAll(when+": the control plane", text)
	if err := m.load.WaitMore(m.t.Context(), 50); err != nil {
		m.t.Fatal(err)
	}
	if r := m.load.Report(); r.Failed > 0 {
		m.t.Errorf("%s: %v", when, r)
	}
	trusted, err := m.client.Trusted()
	if err != nil {
		m.t.Fatal(err)
	}
	roots := len(trusted)
	if m.root == nil {
		m.root = trusted[0]
	}
	if roots != 1 || !m.root.Equal(trusted[0]) {
		m.t.Errorf("%s: %d CAs are trusted, or another one than before: what the release before has made was not read", when, roots)
	}
}

// knowsAll looks whether a program was sent what it does not know.
func (m *mesh) knowsAll(who, text string) {
	m.t.Helper()
	metrics, err := harness.ParseMetrics(strings.NewReader(text))
	if err != nil {
		m.t.Fatal(err)
	}
	counters := 0
	for name, value := range metrics {
		if strings.Contains(name, "_unknown_") {
			counters++
			if value > 0 {
				m.t.Errorf("%s: %s is %v", who, name, value)
			}
		}
	}
	if counters == 0 {
		m.t.Errorf("%s has no metric of what it does not know", who)
	}
}

// A control plane is upgraded, and rolled back: agents of both releases go on with either, and each reads what the other has written.
func TestControlPlaneForthAndBack(t *testing.T) {
	now, before := releases(t)
	m := newMesh(t, before)
	m.check("the release before")
	m.controlPlane(now)
	m.check("upgraded, with agents of before")
	m.addServer("upgraded", now)
	m.agent(m.servers[0], now)
	m.answers("upgraded", m.servers[0].Name)
	m.check("upgraded, with agents of both")
	m.controlPlane(before)
	m.check("rolled back, with agents of both")
	m.addServer("rolled back", before)
	m.agent(m.servers[0], before)
	m.answers("rolled back", m.servers[0].Name)
	m.check("rolled back")
	m.controlPlane(now)
	m.check("upgraded again")
}

// A proxy that drains is known to drain by the next control plane, of either release; and a rotation of the CA goes on where it was.
func TestWhatIsGoingOnGoesOn(t *testing.T) {
	now, before := releases(t)
	for name, of := range map[string][2]harness.Programs{"forth": {before, now}, "back": {now, before}} {
		t.Run(name, func(t *testing.T) {
			m := newMesh(t, of[0])
			m.check("the first")
			if _, err := m.Ctl(t.Context(), "drain", "dataplane/server-1"); err != nil {
				t.Fatal(err)
			}
			if _, err := m.Ctl(t.Context(), "rotate", "ca", "--mesh=default"); exitCode(err) != 4 { // in progress {
				t.Fatal(err)
			}
			m.controlPlane(of[1])
			m.poll("the drain in the next control plane", func(ctx context.Context) error {
				s, err := m.servers[1].State(ctx)
				if err == nil && !s.Draining {
					err = errors.New("it does not drain")
				}
				return err
			})
			m.poll("the end of the rotation", func(context.Context) error {
				trusted, err := m.client.Trusted()
				if err == nil && (len(trusted) != 1 || trusted[0].Equal(m.root)) {
					err = fmt.Errorf("%d CAs are trusted", len(trusted))
				}
				return err
			})
			m.root = nil
			m.check("the next")
		})
	}
}

// exitCode returns that of a program that has failed, 0 of one that has not.
func exitCode(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return 0
}

// An agent of this release that has joined the control plane before takes no records, whatever the control plane is then: its listeners stay as they are, and
// sondectl check strict says of it that it cannot tell, until it is started again.
func TestCheckStrictOfAnEnvoyOfBefore(t *testing.T) {
	now, before := releases(t)
	m := newMesh(t, before)
	if err := m.Put("mesh.yaml", harness.MeshYAML("PERMISSIVE")); err != nil {
		t.Fatal(err)
	}
	m.agent(m.servers[0], now)
	m.answers("the release before", m.servers[0].Name)
	m.check("the release before, with agents of both")
	had := map[string]string{}
	for _, p := range m.servers {
		had[p.Name] = m.listeners(p)
	}

	m.controlPlane(now)
	m.check("upgraded")
	for _, p := range m.servers {
		if m.listeners(p) != had[p.Name] {
			t.Errorf("the listeners of %s are others than before the upgrade", p.Name)
		}
	}
	m.strictSays("upgraded", "dataplane server-0 cannot tell what it gets: its Envoy was started when its agent, or the control plane, was too old to record plain text",
		"dataplane client, server-1 cannot tell what it gets: its agent of version ", "as far as 0 of 3 proxies tell")
	m.agent(m.servers[0], now)
	m.strictSays("restarted", "dataplane client, server-1 cannot tell what it gets: its agent of version ", "as far as 1 of 3 proxies tell")
	if m.listeners(m.servers[0]) == had["server-0"] {
		t.Error("an Envoy that was started anew has no records")
	}
}

// listeners returns the names and versions of the listeners that a proxy has got.
func (m *mesh) listeners(p *harness.Proxy) string {
	m.t.Helper()
	dump, err := p.EnvoyGet(m.t.Context(), "/config_dump?resource=dynamic_listeners&mask=active_state.version_info,name")
	if err != nil {
		m.t.Fatal(err)
	}
	return dump
}

// strictSays waits until sondectl check strict says all of these.
func (m *mesh) strictSays(when string, want ...string) {
	m.t.Helper()
	m.poll(when+": sondectl check strict", func(ctx context.Context) error {
		text, err := m.Ctl(ctx, "check", "strict")
		for _, line := range want {
			if err == nil && !strings.Contains(text, line) {
				err = fmt.Errorf("it lacks %q:\n%s", line, text)
			}
		}
		return err
	})
}
