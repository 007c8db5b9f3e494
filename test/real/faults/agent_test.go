package faults

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestAgentKilled kills agents with -9, at rest and right after their Envoy has started. All their processes must
// end.
func TestAgentKilled(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	p := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"a"}})[0]
	for round := range 4 {
		if round > 0 {
			must.Do(t, p.RunAgent())
		}
		must.Poll(t, "an Envoy in the directory of "+p.Name, func(context.Context) error {
			pids, err := p.Processes()
			if err == nil && len(pids) != 1 {
				err = fmt.Errorf("processes %v still run", pids)
			}
			return err
		})
		p.Agent.Kill()
		killed := time.Now()
		must.Poll(t, "all processes to end", func(ctx context.Context) error {
			pids, err := p.Processes()
			if err == nil && len(pids) > 0 {
				err = fmt.Errorf("processes %v run", pids)
			}
			if err != nil {
				return err
			}
			return free(ctx, p.Inbound, p.Admin, p.Outbounds["a"])
		})
		t.Logf("round %d: ended %d ms after the agent", round, time.Since(killed).Milliseconds())
	}
	must.Do(t, p.RunAgent()) // nothing of the killed agent blocks its successor
	must.Do(t, p.WaitReady(t.Context()))
	synced(t, p)
}

// free returns an error unless a program can listen on each address.
func free(ctx context.Context, addresses ...string) error {
	for _, at := range addresses {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at)
		if err != nil {
			return err
		}
		if err := l.Close(); err != nil {
			return err
		}
	}
	return nil
}

// TestEnvoyKilled kills Envoys with -9. The agent starts another Envoy, which receives its whole configuration, even
// after a time without a control plane.
func TestEnvoyKilled(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	proxies := must.Add(t, m,
		harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}},
		harness.ProxyOptions{Name: "b-1", Service: "b"}, harness.ProxyOptions{Name: "b-2", Service: "b"})
	a, b1, b2 := proxies[0], proxies[1], proxies[2]
	endpoints(t, a, "b", b1, b2)
	pid := killEnvoy(t, b2)
	// From now on the endpoint refuses connections, and Envoy retries calls on other endpoints.
	load := startLoad(t, httpCallers(a, "b")...)
	must.Poll(t, "another Envoy", func(context.Context) error {
		now, err := b2.EnvoyPID()
		if err == nil && now == pid {
			err = fmt.Errorf("it is %d still", pid)
		}
		return err
	})
	must.Do(t, b2.WaitReady(t.Context()))
	reaches(t, load, b2.Name)
	must.Hold(t, load)

	m.ControlPlane.Kill()
	killEnvoy(t, a)
	must.Do(t, m.StartControlPlane(t.Context()))
	synced(t, proxies...)
	must.Do(t, a.WaitReady(t.Context()))
	calls(t, a, "b")
}

// killEnvoy kills the Envoy of a proxy, waits for its end, and returns its process id.
func killEnvoy(t *testing.T, p *harness.Proxy) int {
	t.Helper()
	pid, err := p.EnvoyPID()
	must.Do(t, err)
	must.Do(t, kill(pid))
	must.Poll(t, "the Envoy of "+p.Name+" to end", func(context.Context) error {
		pids, err := p.Processes()
		if err == nil && slices.Contains(pids, pid) {
			err = fmt.Errorf("%d runs", pid)
		}
		return err
	})
	return pid
}
