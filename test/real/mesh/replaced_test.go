package mesh

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestReplacedOutboundKeepsServing replaces the service of an outbound on the same port. The old listener serves its
// open connections for the drain time, so the old cluster must stay that long.
func TestReplacedOutboundKeepsServing(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	client := must.Add(t, m,
		harness.ProxyOptions{Name: "client-1", Service: "client", Outbound: []string{"one"}, AgentArgs: []string{"--drain-time=3s"}},
		harness.ProxyOptions{Name: "one-1", Service: "one"}, harness.ProxyOptions{Name: "two-1", Service: "two"})[0]
	at := client.Outbounds["one"]

	// Eight busy connections, and eight that pause for longer than Envoy once took to remove the
	// cluster.
	busy := harness.StartLoad(t.Context(), 5*time.Millisecond, keptCallers(at, 8)...)
	resting := harness.StartLoad(t.Context(), 500*time.Millisecond, keptCallers(at, 8)...)
	defer busy.Stop()
	defer resting.Stop()
	must.Do(t, resting.WaitMore(t.Context(), 8))
	replaceOutbound(t, m, client, at, "two")
	answersOf(t, at, "two-1")
	lacksCluster(t, client, "one")
	must.Do(t, resting.WaitMore(t.Context(), 16))
	for name, load := range map[string]*harness.Load{"busy": busy, "resting": resting} {
		if r := load.Stop(); r.Failed > 0 || r.Instances["one-1"] == 0 || r.Instances["two-1"] == 0 {
			t.Errorf("%s connections: %s\nanswered by %v", name, r, r.Instances)
		}
	}
}

// TestReplacedProtocolKeepsServing replaces an HTTP outbound by a TCP outbound, which has no route.
func TestReplacedProtocolKeepsServing(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	client := must.Add(t, m,
		harness.ProxyOptions{Name: "client-1", Service: "client", Outbound: []string{"one"}, AgentArgs: []string{"--drain-time=5s"}},
		harness.ProxyOptions{Name: "one-1", Service: "one"}, harness.ProxyOptions{Name: "raw-1", Service: "raw", Protocol: "tcp"})[0]
	at := client.Outbounds["one"]
	kept := harness.NewHTTPCaller("http://"+at+"/", true, false)
	defer kept.Close()
	_, err := kept.Call(t.Context())
	must.Do(t, err)
	replaceOutbound(t, m, client, at, "raw")
	must.Poll(t, "an echo", func(ctx context.Context) error {
		c := harness.NewTCPCaller(at, false)
		defer c.Close()
		_, err := c.Call(ctx)
		return err
	})
	if _, err := kept.Call(t.Context()); err != nil {
		t.Errorf("on the connection from before: %v", err)
	}
	lacksCluster(t, client, "one")
}

func replaceOutbound(t *testing.T, m *harness.Machine, p *harness.Proxy, at, service string) {
	t.Helper()
	must.Do(t, m.Put(p.Name+".yaml", edited(t, p, func(networking object) {
		networking["outbound"] = []object{{"port": must.Port(t, at), "tags": object{"kuma.io/service": service}}}
	})))
}

// keptCallers returns callers that each use one connection.
func keptCallers(at string, n int) []harness.Caller {
	var callers []harness.Caller
	for range n {
		callers = append(callers, harness.NewHTTPCaller("http://"+at+"/", true, false))
	}
	return callers
}

// lacksCluster waits until the Envoy of p has removed a cluster.
func lacksCluster(t *testing.T, p *harness.Proxy, name string) {
	t.Helper()
	must.Poll(t, fmt.Sprintf("%s to lose cluster %s", p.Name, name), func(ctx context.Context) error {
		clusters, err := p.EnvoyGet(ctx, "/clusters")
		if err == nil && strings.Contains(clusters, "\n"+name+"::") {
			return fmt.Errorf("it has cluster %s", name)
		}
		return err
	})
}
