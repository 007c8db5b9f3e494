package mesh

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// shows waits until the output of a sondectl command contains these texts.
func shows(t *testing.T, m *harness.Machine, command string, texts ...string) {
	t.Helper()
	must.Poll(t, fmt.Sprintf("sondectl %s to show %q", command, texts), func(ctx context.Context) error {
		out, err := m.Ctl(ctx, strings.Fields(command)...)
		for _, text := range texts {
			if err == nil && !strings.Contains(out, text) {
				err = fmt.Errorf("no %q in:\n%s", text, out)
			}
		}
		return err
	})
}

// TestWorkloadChangesWithoutAToken gives a running Dataplane another service, which its token does not allow. Until
// the agent has a new token, the endpoint gets no traffic, and sondectl, logs and readiness show the reason.
func TestWorkloadChangesWithoutAToken(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	proxies := must.Add(t, m,
		harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b", "c"}},
		harness.ProxyOptions{Name: "b-1", Service: "b"}, harness.ProxyOptions{Name: "c-1", Service: "c"},
	)
	a, b, c := proxies[0], proxies[1], proxies[2]
	answersOf(t, a.Outbounds["b"], "b-1")
	answersOf(t, a.Outbounds["c"], "c-1")
	load := harness.StartLoad(t.Context(), 2*time.Millisecond, harness.NewHTTPCaller("http://"+a.Outbounds["c"]+"/", false, false))
	defer load.Stop()

	b.Service = "c"
	must.Do(t, b.Declare())
	differs := `the certificate is for workload "b", the Dataplane has workload "c"`
	shows(t, m, "get services", b.Inbound+" (b-1): "+differs)
	shows(t, m, "get proxies", "not ready: "+differs, `cannot join: the token is for workload "b"`)
	shows(t, m, "get dataplane b-1", "not-ready", differs)
	must.Log(t, m.ControlPlane, `"WARN"`, "certificate is for another workload", `"proxy":"b-1"`, `"certificateWorkload":"b"`, `"workload":"c"`)
	must.Log(t, b.Agent, "failed to renew certificate", "the agent needs another token")
	must.HaveEndpoints(t, a, "c", c.Inbound)
	if err := noEndpoint(t.Context(), a.Outbounds["b"]); err == nil {
		t.Error("service b has no endpoint, and still speaks HTTP")
	}
	must.Poll(t, "the Envoy of b-1 to be served meanwhile", b.Synced)
	must.Make(t, load, 200)

	must.Do(t, b.MakeToken(t.Context()))
	must.HaveEndpoints(t, a, "c", b.Inbound, c.Inbound)
	answersOf(t, a.Outbounds["c"], "b-1", "c-1")
	state, err := b.State(t.Context())
	must.Do(t, err)
	if state.OtherWorkload != "" || state.AgentState.Refusal != "" {
		t.Errorf("its state is still %+v", state)
	}
	if n, err := m.ControlPlane.Lines("certificate is for another workload"); err != nil || n != 1 {
		t.Errorf("the control plane has logged it %d times, want once: %v", n, err)
	}
	// The agent retries with growing delays, and logs the same reason once a minute.
	if n, err := b.Agent.Lines("joining again"); err != nil || n > 2 {
		t.Errorf("the agent has logged %d times that it joins again: %v", n, err)
	}
	must.Make(t, load, 200)
	t.Log(must.Hold(t, load))

	// a restart with the token of the new workload
	ctx := wait.Context(t)
	must.Do(t, b.Agent.Terminate(ctx))
	must.Do(t, b.RunAgent())
	must.Do(t, b.WaitReady(t.Context()))
	must.HaveEndpoints(t, a, "c", b.Inbound, c.Inbound)
}

// TestWorkloadChangesWithAToken writes the token of the new workload right after the change. The agent renews the
// certificate soon, and clients of the other replica are not affected.
func TestWorkloadChangesWithAToken(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	proxies := must.Add(t, m,
		harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b", "c"}},
		harness.ProxyOptions{Name: "b-1", Service: "b"}, harness.ProxyOptions{Name: "b-2", Service: "b"}, harness.ProxyOptions{Name: "c-1", Service: "c"},
	)
	a, b, c := proxies[0], proxies[1], proxies[3]
	answersOf(t, a.Outbounds["b"], "b-1", "b-2")
	url := "http://" + a.Outbounds["c"] + "/"
	load := harness.StartLoad(t.Context(), 2*time.Millisecond, harness.NewHTTPCaller(url, false, false), harness.NewHTTPCaller(url, true, false))
	defer load.Stop()
	must.Make(t, load, 50)
	for _, service := range []string{"c", "b", "c"} {
		b.Service = service
		started := time.Now()
		must.Do(t, b.Declare())
		must.Poll(t, "a token for "+service, b.MakeToken)
		want := []string{c.Inbound}
		if service == "c" {
			want = append(want, b.Inbound)
		}
		must.HaveEndpoints(t, a, "c", want...)
		must.Poll(t, "the certificate to be for "+service, func(context.Context) error {
			identity, err := b.Identity()
			if err != nil {
				return err
			}
			if got := identity.Leaf.URIs[0].Path; got != "/workload/"+service {
				return fmt.Errorf("it is for %s", got)
			}
			return nil
		})
		t.Logf("b-1 serves %s after %s", service, time.Since(started))
		must.Make(t, load, 200)
	}
	answersOf(t, a.Outbounds["c"], "b-1", "c-1")
	t.Log(must.Hold(t, load))
}
