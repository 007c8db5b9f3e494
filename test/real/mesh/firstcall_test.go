package mesh

import (
	"context"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// firstCalls is how many services the test adds, one after the other.
const firstCalls = 10

// slowStart is how long an application takes to start.
const slowStart = 700 * time.Millisecond

// TestFirstCallAfterWait calls a service once, as soon as "sonde-dp wait" has returned: from a proxy that has just
// started, and from a proxy that has been connected for long. The application of every other service starts slowly.
func TestFirstCallAfterWait(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	service := func(i int) string { return fmt.Sprintf("s%d", i) }
	old := harness.ProxyOptions{Name: "old", Service: "old"}
	for i := range firstCalls {
		old.Outbound = append(old.Outbound, service(i))
	}
	connected := must.Add(t, m, old)[0]
	for i := range firstCalls {
		backend, err := m.Prepare(harness.ProxyOptions{Name: service(i) + "-1", Service: service(i), ServiceProbe: tcpEverySecond})
		must.Do(t, err)
		client, err := m.Prepare(harness.ProxyOptions{Name: fmt.Sprintf("client-%d", i), Service: "client", Outbound: []string{service(i)}})
		must.Do(t, err)
		both := []*harness.Proxy{backend, client}
		for _, p := range both {
			must.Do(t, p.Declare())
			must.Do(t, p.StartAgent(t.Context()))
		}
		if i%4 > 1 {
			both[0], both[1] = client, backend
		}
		slow := time.NewTimer(time.Duration(i%2) * slowStart)
		started := make(chan error, 1)
		go func() {
			<-slow.C
			started <- backend.StartApp(t.Context())
		}()
		for _, p := range both {
			awaitAgent(t, p)
		}
		for _, from := range []*harness.Proxy{connected, client} {
			if _, err := callOnce(t.Context(), from.Outbounds[service(i)]); err != nil {
				t.Errorf("service %d, first call of %s: %v", i, from.Name, err)
			}
		}
		must.Do(t, <-started)
		for _, p := range both {
			p.Agent.Kill()
		}
		backend.App.Kill()
	}
}

// awaitAgent runs "sonde-dp wait".
func awaitAgent(t *testing.T, p *harness.Proxy, args ...string) {
	t.Helper()
	began := time.Now()
	cmd := exec.CommandContext(t.Context(), programs.Agent, append([]string{"wait", "--admin-addr=" + p.Admin, "--timeout=10m"}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("wait for %s: %v: %s", p.Name, err, out)
	}
	t.Logf("waited for %s for %s", p.Name, time.Since(began).Round(time.Millisecond))
}

// TestWaitForAnApplicationThatIsNotThere waits for an application that does not run: "sonde-dp wait" fails
// and names the endpoint. Without the wait for endpoints, it succeeds.
func TestWaitForAnApplicationThatIsNotThere(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	p, err := m.Prepare(harness.ProxyOptions{Name: "b-1", Service: "b", ServiceProbe: tcpEverySecond})
	must.Do(t, err)
	must.Do(t, p.Declare())
	must.Do(t, p.StartAgent(t.Context()))
	awaitAgent(t, p, "--endpoints=false")
	reason := p.Inbound + " is not ready: application probe failed: dial tcp " + p.AppAddress + ": connect: connection refused"
	must.Poll(t, "the agent to say why its endpoint is not ready", func(ctx context.Context) error {
		out, err := exec.CommandContext(ctx, programs.Agent, "wait", "--admin-addr="+p.Admin, "--timeout=300ms").CombinedOutput()
		want := "sonde-dp: wait for agent at " + p.Admin + ": not ready after 300ms: endpoints warning: " + reason + "\n"
		if err == nil || string(out) != want {
			return fmt.Errorf("wait = %w, %q, want %q", err, out, want)
		}
		return nil
	})
	must.Do(t, p.StartApp(t.Context()))
	awaitAgent(t, p)
}

// TestWaitForNoAgent waits for an agent at the health port of the control plane.
func TestWaitForNoAgent(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	cmd := exec.CommandContext(t.Context(), programs.Agent, "wait", "--admin-addr="+m.Health)
	out, err := cmd.CombinedOutput()
	if want := "sonde-dp: wait for agent at " + m.Health + ": a control plane answers there, but is not an agent: --admin-addr must be the value given to sonde-dp run\n"; err == nil || string(out) != want {
		t.Errorf("wait = %v, %q, want %q", err, out, want)
	}
}
