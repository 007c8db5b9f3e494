package mesh

import (
	"context"
	"testing"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestAgentThatNeverJoined declares a replica without starting it: the replica must not get traffic.
func TestAgentThatNeverJoined(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	proxies := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}}, harness.ProxyOptions{Name: "b-1", Service: "b"})
	a, b1 := proxies[0], proxies[1]
	b2, err := m.Prepare(harness.ProxyOptions{Name: "b-2", Service: "b"})
	must.Do(t, err)
	must.Do(t, b2.Declare())
	shows(t, m, "get services", "1/2", "not ready: "+b2.Inbound+" (b-2): its proxy has never joined")
	shows(t, m, "get dataplane b-2", "not-ready", "never joined")
	must.Poll(t, "its agent to be shown", func(ctx context.Context) error { return b2.AgentIs(ctx, "NEVER_JOINED") })
	must.HaveEndpoints(t, a, "b", b1.Inbound)
	answersOf(t, a.Outbounds["b"], "b-1")

	must.Do(t, b2.StartApp(t.Context()))
	must.Do(t, b2.StartAgent(t.Context()))
	must.Do(t, b2.WaitReady(t.Context()))
	must.HaveEndpoints(t, a, "b", b1.Inbound, b2.Inbound)
	answersOf(t, a.Outbounds["b"], "b-1", "b-2")
	shows(t, m, "get services", "2/2")
}

// TestAgentThatIsLost kills an agent, and then the control plane. sondectl reports the lost agent; its endpoint
// stays, because the application may still run.
func TestAgentThatIsLost(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	proxies := must.Add(t, m,
		harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}},
		harness.ProxyOptions{Name: "b-1", Service: "b"}, harness.ProxyOptions{Name: "b-2", Service: "b"})
	a, b1, b2 := proxies[0], proxies[1], proxies[2]
	must.HaveEndpoints(t, a, "b", b1.Inbound, b2.Inbound)
	b2.Agent.Kill()
	// The agent has 30 s to reconnect.
	must.Poll(t, "its agent to be lost", func(ctx context.Context) error { return b2.AgentIs(ctx, "LOST") })
	shows(t, m, "get services", "2/2", b2.Inbound+" (b-2): agent lost", "endpoint stays")
	shows(t, m, "get proxies", "lost")
	all, err := m.Metrics(t.Context())
	must.Do(t, err)
	if n := all[`sonde_agents_lost{mesh="default"}`]; n != 1 {
		t.Errorf("%v agents are lost, want 1", n)
	}
	must.HaveEndpoints(t, a, "b", b1.Inbound, b2.Inbound)

	m.ControlPlane.Kill()
	must.Do(t, m.StartControlPlane(t.Context()))
	must.Poll(t, "the agent of b-1 to be back", func(ctx context.Context) error { return b1.AgentIs(ctx, "CONNECTED") })
	if err := b2.AgentIs(t.Context(), "RECONNECTING"); err != nil {
		t.Error(err)
	}
	must.HaveEndpoints(t, a, "b", b1.Inbound, b2.Inbound)
	shows(t, m, "get services", "2/2")

	must.Do(t, b2.RunAgent())
	must.Do(t, b2.WaitReady(t.Context()))
	must.Poll(t, "its agent to be back", func(ctx context.Context) error { return b2.AgentIs(ctx, "CONNECTED") })
	answersOf(t, a.Outbounds["b"], "b-1", "b-2")
}

// TestAgentThatWaits starts an agent before its Dataplane exists.
func TestAgentThatWaits(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	p, err := m.Prepare(harness.ProxyOptions{Name: "b-1", Service: "b"})
	must.Do(t, err)
	must.Do(t, p.StartApp(t.Context()))
	must.Do(t, p.StartAgent(t.Context()))
	must.Log(t, m.ControlPlane, `"WARN"`, "proxy waits for its Dataplane", `"mesh":"default"`, `"proxy":"b-1"`, `"peer":"127.0.0.1"`)
	shows(t, m, "get proxies", "waiting", `dataplane "b-1" of mesh "default" is not known`)
	must.Log(t, p.Agent, `dataplane \"b-1\" of mesh \"default\" is not known`)

	must.Do(t, p.Declare())
	must.Do(t, p.WaitReady(t.Context()))
	must.Poll(t, "its agent to be connected", func(ctx context.Context) error { return p.AgentIs(ctx, "CONNECTED") })
	if n, err := m.ControlPlane.Lines("proxy waits for its Dataplane"); err != nil || n != 1 {
		t.Errorf("the control plane has logged it %d times, want once: %v", n, err)
	}
}
