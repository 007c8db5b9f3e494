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

// probe is a serviceProbe of a server's application, so that sessions also transfer its readiness.
var probe = map[string]any{"httpGet": map[string]any{"path": "/"}, "periodSeconds": 1}

// shortDrain has a short drain time for agents that are replaced.
var shortDrain = []string{"--drain-time=2s"}

// mesh is a control plane with proxies, and a client whose calls never fail.
type mesh struct {
	t *testing.T
	*harness.Machine
	client  *harness.Proxy
	servers []*harness.Proxy
	load    *harness.Load
	// root is the CA of the mesh, set by the first check.
	root *x509.Certificate
}

// newMesh starts a mesh with the programs of a release, with two servers.
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

// controlPlane replaces the control plane with another release, which uses the same state.
func (m *mesh) controlPlane(of harness.Programs) {
	m.t.Helper()
	m.ControlPlane.Kill()
	m.Use(of)
	if err := m.StartControlPlane(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
}

// agent replaces the agent of a proxy with another release, which uses the same work directory: with an empty one, it
// could not join, because its token is invalid.
func (m *mesh) agent(p *harness.Proxy, of harness.Programs) {
	m.t.Helper()
	m.Use(of)
	ctx := wait.Context(m.t)
	if err := errors.Join(p.Agent.Terminate(ctx), p.SetToken("none"), p.RunAgent(), p.WaitReady(ctx)); err != nil {
		m.t.Fatal(err)
	}
}

// addServer adds a server with an agent of a release, and waits until the client reaches it.
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

// answers waits until a server responds to the client.
func (m *mesh) answers(when, server string) {
	m.t.Helper()
	before := m.load.Report().Instances[server]
	m.poll(when+": an answer of "+server, func(context.Context) error {
		if r := m.load.Report(); r.Instances[server] == before {
			return fmt.Errorf("not found: %v", r)
		}
		return nil
	})
}

// check verifies the mesh: each agent has a session, each Envoy has its whole configuration, calls succeed, neither
// side received unknown messages, and issued certificates are still trusted.
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
		m.t.Errorf("%s: %d CAs are trusted, or another one than before: the state of the other release was not read", when, roots)
	}
}

// knowsAll fails the test if a program received unknown messages, according to its metrics.
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
		m.t.Errorf("%s has no metric of unknown messages", who)
	}
}

// A control plane is upgraded and rolled back: agents of both releases work with both, and each release reads the
// other's state.
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

// The next control plane, of either release, still drains a draining proxy, and continues a rotation of the CA.
func TestWhatIsGoingOnGoesOn(t *testing.T) {
	now, before := releases(t)
	for name, of := range map[string][2]harness.Programs{"forth": {before, now}, "back": {now, before}} {
		t.Run(name, func(t *testing.T) {
			m := newMesh(t, of[0])
			m.check("the first")
			if _, err := m.Ctl(t.Context(), "drain", "dataplane/server-1"); err != nil {
				t.Fatal(err)
			}
			if _, err := m.Ctl(t.Context(), "rotate", "ca", "--mesh=default"); exitCode(err) != 4 { // in progress
				t.Fatal(err)
			}
			m.controlPlane(of[1])
			m.poll("the drain in the next control plane", func(ctx context.Context) error {
				s, err := m.servers[1].State(ctx)
				if err == nil && !s.Draining {
					err = errors.New("the proxy does not drain")
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

// exitCode returns the exit code of a failed program, or 0.
func exitCode(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return 0
}

// An agent that joined the previous release's control plane takes no records, even after the control plane is
// upgraded: its listeners stay unchanged, and sondectl check strict reports it as unknown until the agent restarts.
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
	m.strictSays("upgraded", "dataplane server-0 does not report its traffic: its Envoy was started when its agent, or the control plane, was too old to record plaintext",
		"dataplane client, server-1 does not report its traffic: its agent of version ", "as reported by 0 of 3 proxies")
	m.agent(m.servers[0], now)
	m.strictSays("restarted", "dataplane client, server-1 does not report its traffic: its agent of version ", "as reported by 1 of 3 proxies")
	if m.listeners(m.servers[0]) == had["server-0"] {
		t.Error("an Envoy that was started anew has no records")
	}
}

// listeners returns the names and versions of the listeners that a proxy has received.
func (m *mesh) listeners(p *harness.Proxy) string {
	m.t.Helper()
	dump, err := p.EnvoyGet(m.t.Context(), "/config_dump?resource=dynamic_listeners&mask=active_state.version_info,name")
	if err != nil {
		m.t.Fatal(err)
	}
	return dump
}

// strictSays waits until the output of sondectl check strict contains all these texts.
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
