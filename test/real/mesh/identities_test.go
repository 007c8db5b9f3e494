package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestSecondWorkload adds and removes a proxy of another workload repeatedly, under load. Each time, the service's
// endpoints and the identities that its clients accept change in one step. Then only the identities change: the
// Cluster is sent, with the same endpoints.
func TestSecondWorkload(t *testing.T) {
	for _, envoy := range envoys {
		t.Run(filepath.Base(filepath.Dir(envoy)), func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, strict)
			proxies := must.Add(t, m,
				harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}, Envoy: envoy},
				harness.ProxyOptions{Name: "b-1", Service: "b", Envoy: envoy},
				harness.ProxyOptions{Name: "b-2", Service: "other", Labels: map[string]string{"kuma.io/workload": "second"}, Envoy: envoy},
			)
			a, b1, b2 := proxies[0], proxies[1], proxies[2]
			must.HaveEndpoints(t, a, "b", b1.Inbound)
			url := "http://" + a.Outbounds["b"] + "/"
			load := harness.StartLoad(t.Context(), 2*time.Millisecond, harness.NewHTTPCaller(url, false, false),
				harness.NewHTTPCaller(url, true, false), harness.NewHTTPCaller(url, true, false))
			defer load.Stop()
			for range 5 {
				must.Make(t, load, 50)
				before := load.Report().Instances["b-2"]
				b2.Service = "b"
				must.Do(t, b2.Declare())
				must.Poll(t, "the second workload to be called", func(context.Context) error {
					if n := load.Report().Instances["b-2"] - before; n < 10 {
						return fmt.Errorf("it has answered %d calls", n)
					}
					return nil
				})
				warm(t, a)
				b2.Service = "other"
				must.Do(t, b2.Declare())
				must.HaveEndpoints(t, a, "b", b1.Inbound)
				warm(t, a)
			}
			for _, workload := range []string{"third", "fourth"} {
				p, err := m.Prepare(harness.ProxyOptions{Name: "b-" + workload, Service: "b", Labels: map[string]string{"kuma.io/workload": workload}})
				must.Do(t, err)
				p.Ready = false
				must.Do(t, p.Declare())
				accepts(t, a, "/workload/"+workload)
			}
			t.Log(must.Hold(t, load))
			if n, err := a.Agent.Lines("initial fetch timed out"); n > 0 || err != nil {
				t.Errorf("Envoy gave up waiting for the endpoints of a changed Cluster %d times, %v", n, err)
			}
			// Retries would hide a rejected identity, so the counter must be 0.
			if n := stat(t, a, "cluster.b.ssl.fail_verify_san"); n > 0 {
				t.Errorf("%d endpoints were called before their identity was accepted", n)
			}
		})
	}
}

// accepts waits until the active Cluster b of an Envoy accepts an identity.
func accepts(t *testing.T, p *harness.Proxy, identity string) {
	t.Helper()
	must.Poll(t, p.Name+" to use the changed Cluster", func(ctx context.Context) error {
		var dump struct {
			Configs []struct {
				Cluster json.RawMessage `json:"cluster"`
			} `json:"configs"`
		}
		if err := p.EnvoyJSON(ctx, "/config_dump?resource=dynamic_active_clusters&name_regex=^b$", &dump); err != nil {
			return err
		}
		if len(dump.Configs) != 1 || !strings.Contains(string(dump.Configs[0].Cluster), identity+`"`) {
			return errors.New("the active Cluster is the old one")
		}
		return nil
	})
}

// warm waits until no cluster of an Envoy is waiting for its endpoints.
func warm(t *testing.T, p *harness.Proxy) {
	t.Helper()
	must.Poll(t, "clusters to be warm", func(ctx context.Context) error {
		stats, err := p.Stats(ctx, `cluster_manager\.warming_clusters`)
		if err != nil {
			return err
		}
		n, ok := stats["cluster_manager.warming_clusters"]
		if !ok || n > 0 {
			return errors.New("some are not")
		}
		return nil
	})
}
