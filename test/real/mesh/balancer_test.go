package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestLoadBalancersWithoutKubernetes requests the health port for load balancers of a proxy whose Dataplane a user
// wrote.
func TestLoadBalancersWithoutKubernetes(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	at := must.FreeAddress(t, m)
	_, port, err := net.SplitHostPort(at)
	must.Do(t, err)
	all := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}},
		harness.ProxyOptions{Name: "b-1", Service: "b", Protocol: "http", ServiceProbe: tcpEverySecond, AgentArgs: []string{"--lb-health-port=" + port}},
		harness.ProxyOptions{Name: "b-2", Service: "b", Protocol: "http"})
	a, b1, b2 := all[0], all[1], all[2]
	healthz := func(code int, want string) {
		t.Helper()
		must.Poll(t, fmt.Sprintf("/healthz to be %d with %q", code, want), func(ctx context.Context) error {
			got, body := http.StatusOK, ""
			out, err := m.Get(ctx, "http://"+at+"/healthz")
			if refused, ok := errors.AsType[*harness.StatusError](err); ok {
				got, body, err = refused.Code, refused.Body, nil
			}
			if err == nil && (got != code || !strings.Contains(out+body, want)) {
				err = fmt.Errorf("it is %d %s", got, out+body)
			}
			return err
		})
	}
	said := func(want string) {
		t.Helper()
		must.Poll(t, "sondectl why to show"+want, func(ctx context.Context) error {
			out, err := m.Ctl(ctx, "why", "b-1")
			if err == nil && !strings.Contains(out, want) {
				err = errors.New(out)
			}
			return err
		})
	}
	healthz(http.StatusOK, `"healthy":true`)

	b1.App.Kill()
	healthz(http.StatusServiceUnavailable, "connection refused")
	must.Do(t, m.ControlPlane.Terminate(t.Context()))
	must.Do(t, b1.StartApp(t.Context()))
	healthz(http.StatusOK, `"healthy":true`) // the agent needs no control plane for this
	must.Do(t, m.StartControlPlane(t.Context()))
	must.HaveEndpoints(t, a, "b", b1.Inbound, b2.Inbound)

	must.Do(t, b1.SetReady(false))
	healthz(http.StatusServiceUnavailable, "declares all its inbounds not ready")
	must.Do(t, b1.SetReady(true))
	healthz(http.StatusOK, `"healthy":true`)

	ctl := func(args ...string) {
		t.Helper()
		if _, err := m.Ctl(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	ctl("drain", "dataplane/b-1", "--reason=new disk")
	healthz(http.StatusServiceUnavailable, `"reasons":["administrator"]`)
	said("draining: dataplane is drained: new disk")
	must.HaveEndpoints(t, a, "b", b2.Inbound)
	must.Do(t, m.ControlPlane.Terminate(t.Context()))
	must.Do(t, m.StartControlPlane(t.Context()))
	said("draining: dataplane is drained: new disk")
	ctl("undrain", "dataplane/b-1")
	healthz(http.StatusOK, `"healthy":true`)
	must.HaveEndpoints(t, a, "b", b1.Inbound, b2.Inbound)
}
