package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestAgentDiskIsStuck freezes the disk of an agent before its certificate is renewed: the agent is ready until the
// old certificate expires, and stays live.
func TestAgentDiskIsStuck(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 30*time.Second)
	lb, err := m.FreeAddress()
	must.Do(t, err)
	_, port, _ := strings.Cut(lb, ":")
	p := must.Prepare(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"a"}, AgentArgs: []string{"--lb-health-port=" + port}})
	mounted := mountDisk(t, p.Dir())
	must.Do(t, m.Launch(t.Context(), p))
	synced(t, p)
	thaw := mounted.freeze()
	ask := func(ctx context.Context, url string) error {
		_, err := m.Get(ctx, url)
		return err
	}
	ready, alive, balancer := "http://"+p.Admin+"/readyz", "http://"+p.Admin+"/livez", "http://"+lb+"/healthz"
	identity, err := p.Identity()
	must.Do(t, err)
	for time.Until(identity.Leaf.NotAfter) > 6*time.Second { // the agent renews at the latest 8.5 s before the expiry
		must.Do(t, ask(t.Context(), ready))
		must.Do(t, ask(t.Context(), balancer))
		time.Sleep(100 * time.Millisecond)
	}
	calls(t, p, "a")
	must.Log(t, p.Agent, "failed to renew certificate", "no answer from the disk")
	must.Poll(t, "the certificate to expire", func(ctx context.Context) error {
		err := ask(ctx, ready)
		if status := statusOf(err); status.Code != 503 || !strings.Contains(err.Error(), "[-]identity failed: the certificate expired") {
			return fmt.Errorf("readiness is %w", err)
		}
		return nil
	})
	must.Do(t, ask(t.Context(), alive))
	thaw()
	must.Do(t, p.WaitReady(t.Context()))
	calls(t, p, "a")
}
