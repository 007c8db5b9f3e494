package mesh

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// listeners returns the names of the listeners of p's Envoy.
func listeners(ctx context.Context, p *harness.Proxy) ([]string, error) {
	var all struct {
		Listeners []struct {
			Name string `json:"name"`
		} `json:"listener_statuses"`
	}
	if err := p.EnvoyJSON(ctx, "/listeners?format=json", &all); err != nil {
		return nil, err
	}
	var names []string
	for _, l := range all.Listeners {
		names = append(names, l.Name)
	}
	slices.Sort(names)
	return names, nil
}

// needIPv6 skips a test on a machine without IPv6.
func needIPv6(t *testing.T) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp6", "[::]:0")
	if err != nil {
		redirecttest.NotHere(t, "this machine has no IPv6: "+err.Error())
	}
	must.Do(t, l.Close())
}

// TestTransparentProxying sends connections to the capture listeners of a real Envoy, without redirection by the
// kernel.
func TestTransparentProxying(t *testing.T) {
	needIPv6(t) // without IPv6, Envoy would refuse the listeners
	for _, mode := range []string{"", strict, permissive} {
		t.Run("mode "+mode, func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, mode)
			p, err := m.Prepare(harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"web"}})
			must.Do(t, err)
			ports := map[string]string{"redirectPortInbound": must.FreeAddress(t, m), "redirectPortOutbound": must.FreeAddress(t, m)}
			must.Do(t, m.Put("web.yaml", serviceYAML(t, "web", "http", plainEndpoint{at: must.FreeAddress(t, m)})+
				"addresses: ['10.96.0.1:80', '[fd00::1]:80']\n"))
			must.Do(t, m.Put("raw.yaml", serviceYAML(t, "raw", "tcp")+"addresses: ['10.96.0.2:5432']\n"))
			must.Do(t, m.Put("a-1.yaml", edited(t, p, func(networking object) {
				redirected := object{}
				for name, at := range ports {
					redirected[name] = must.Port(t, at)
				}
				networking["transparentProxying"] = redirected
			})))
			must.Do(t, p.StartApp(t.Context()))
			must.Do(t, p.StartAgent(t.Context()))
			must.Do(t, p.WaitReady(t.Context()))
			must.Poll(t, "a-1 to have everything", p.Synced)

			want := []string{
				"inbound:capture", "inbound:capture6", "outbound:10.96.0.1:80", "outbound:10.96.0.2:5432",
				"outbound:" + p.Outbounds["web"], "outbound:[fd00::1]:80", "outbound:capture", "outbound:capture6", "readiness",
			}
			slices.Sort(want)
			must.Poll(t, "the listeners", func(ctx context.Context) error {
				got, err := listeners(ctx, p)
				if err == nil && !slices.Equal(got, want) {
					err = fmt.Errorf("they are %q, want %q", got, want)
				}
				return err
			})
			for name, at := range ports {
				t.Run(name, func(t *testing.T) {
					// Envoy must not forward a connection to the capture port itself in a loop.
					conn := must.Connect(t, at)
					if _, err := conn.Write([]byte("hello\n")); err != nil {
						t.Fatal(err)
					}
					if err := closedWithout(conn); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
}
