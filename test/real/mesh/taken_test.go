package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestPortOfTheApplication has an application on the port where its Envoy should listen, as in a Dataplane with equal
// port and servicePort.
func TestPortOfTheApplication(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	client := must.Add(t, m, harness.ProxyOptions{Name: "client-1", Service: "client", Outbound: []string{"web"}})[0]
	web, err := m.Prepare(harness.ProxyOptions{Name: "web-1", Service: "web"})
	must.Do(t, err)
	application, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf("0.0.0.0:%d", must.Port(t, web.Inbound)))
	must.Do(t, err)
	defer application.Close() //nolint:errcheck // it is closed below, unless the test has failed
	must.Do(t, web.Declare())
	must.Do(t, web.StartApp(t.Context()))
	must.Do(t, web.StartAgent(t.Context()))

	refuses(t, web, "inbound:"+web.Inbound)
	must.Poll(t, "web-1 not to be ready, with the reason", func(ctx context.Context) error { return notReady(ctx, m, web, cannotBind) })
	must.HaveEndpoints(t, client, "web")
	table, err := m.Ctl(t.Context(), "get", "services")
	must.Do(t, err)
	if !strings.Contains(table, "0/1") || !strings.Contains(table, "refuses the listener: ") || !strings.Contains(table, cannotBind) {
		t.Errorf("sondectl get services prints:\n%s", table)
	}

	m.ControlPlane.Kill() // a restarted control plane learns of the refused listener, too
	must.Do(t, m.StartControlPlane(t.Context()))
	refuses(t, web, "inbound:"+web.Inbound)
	must.Poll(t, "web-1 still not to be ready", func(ctx context.Context) error { return notReady(ctx, m, web, cannotBind) })
	must.HaveEndpoints(t, client, "web")

	must.Do(t, application.Close())
	must.Do(t, web.WaitReady(t.Context()))
	answersOf(t, client.Outbounds["web"], "web-1")
	refuses(t, web)
}

// notReady returns an error unless the agent of p is not ready for the given reason.
func notReady(ctx context.Context, m *harness.Machine, p *harness.Proxy, reason string) error {
	_, err := m.Get(ctx, "http://"+p.Admin+"/readyz")
	switch {
	case err == nil:
		return errors.New("the agent is ready")
	case !strings.Contains(err.Error(), reason):
		return err
	}
	return nil
}
