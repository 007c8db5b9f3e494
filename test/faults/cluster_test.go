package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
)

// warmLimit is how long Envoy may take until it uses a changed Cluster. It takes 15 s if nobody sends the endpoints again.
const warmLimit = time.Second

// TestChangedCluster adds more workloads to the identities of a service while clients call it: its Cluster changes, its
// endpoints do not.
func TestChangedCluster(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	envoys, err := harness.Envoys(t.Context(), "all")
	must(t, err)
	if len(envoys) != 3 {
		t.Fatalf("%d Envoys, want 3: %v", len(envoys), envoys)
	}
	options := []harness.ProxyOptions{{Name: "b-1", Service: "b"}}
	for n, path := range envoys {
		options = append(options, harness.ProxyOptions{Name: fmt.Sprintf("a-%d", n), Service: "a", Envoy: path, Outbound: []string{"b"}})
	}
	proxies := add(t, m, options...)
	b, clients := proxies[0], proxies[1:]
	versions := map[string]bool{}
	loads := make([]*harness.Load, len(clients))
	for n, client := range clients {
		endpoints(t, client, "b", b)
		versions[versionOf(t, client)] = true
		loads[n] = startLoad(t, httpCallers(client, "b")...)
	}
	if len(versions) != len(clients) {
		t.Fatalf("clients have Envoys %v, want three versions", versions)
	}
	join := func(n int) *harness.Proxy {
		workload := fmt.Sprintf("b%d", n)
		p := prepare(t, m, harness.ProxyOptions{Name: fmt.Sprintf("b-%d", n), Service: "b", Labels: map[string]string{"kuma.io/workload": workload}})
		p.Ready = false
		must(t, p.Declare())
		declared := time.Now()
		var wait sync.WaitGroup
		for _, client := range clients {
			wait.Go(func() { warms(t, client, "/workload/"+workload, declared) })
		}
		wait.Wait()
		return p
	}
	join(2) // only declared: its identity comes before its endpoint
	join(3)
	newcomer := join(4)
	must(t, errors.Join(newcomer.StartApp(t.Context()), newcomer.StartAgent(t.Context())))
	must(t, newcomer.WaitReady(t.Context()))
	must(t, newcomer.SetReady(true))
	for _, load := range loads {
		reaches(t, load, newcomer.Name)
		held(t, load)
	}
}

// warms waits until the active cluster b accepts an identity, and fails the test if that took too long.
func warms(t *testing.T, p *harness.Proxy, identity string, declared time.Time) {
	err := harness.Poll(t.Context(), limit, p.Name+" to use the changed cluster", func(ctx context.Context) error {
		received, cluster, err := activeCluster(ctx, p)
		now := time.Now()
		if err != nil {
			return err
		}
		if !strings.Contains(cluster, identity+`"`) {
			return errors.New("it uses the old one")
		}
		warm := now.Sub(received)
		t.Logf("Envoy %s: %s in use at most %d ms after it came, %d ms after it was declared",
			p.Name, identity, warm.Milliseconds(), now.Sub(declared).Milliseconds())
		if warm > warmLimit {
			t.Errorf("%s: the cluster was warm after %s, want at most %s", p.Name, warm, warmLimit)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// activeCluster returns the active cluster b, and when it was received.
func activeCluster(ctx context.Context, p *harness.Proxy) (received time.Time, cluster string, err error) {
	dump, err := p.EnvoyGet(ctx, "/config_dump?resource=dynamic_active_clusters&name_regex=^b$")
	if err != nil {
		return received, "", err
	}
	var answer struct {
		Configs []struct {
			Cluster     json.RawMessage `json:"cluster"`
			LastUpdated time.Time       `json:"last_updated"`
		} `json:"configs"`
	}
	if err := json.Unmarshal([]byte(dump), &answer); err != nil {
		return received, "", fmt.Errorf("decode the clusters of %s: %w", p.Name, err)
	}
	if len(answer.Configs) != 1 {
		return received, "", fmt.Errorf("%s has %d clusters b", p.Name, len(answer.Configs))
	}
	return answer.Configs[0].LastUpdated, string(answer.Configs[0].Cluster), nil
}

// versionOf returns the version of a proxy's Envoy, such as 1.40.0.
func versionOf(t *testing.T, p *harness.Proxy) string {
	t.Helper()
	body, err := p.EnvoyGet(t.Context(), "/server_info")
	must(t, err)
	var info struct {
		Version string `json:"version"`
	}
	must(t, json.Unmarshal([]byte(body), &info))
	parts := strings.Split(info.Version, "/")
	if len(parts) < 2 {
		t.Fatalf("%s has an Envoy of version %q", p.Name, info.Version)
	}
	return parts[1]
}
