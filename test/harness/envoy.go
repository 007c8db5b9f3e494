package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"syscall"
)

// EnvoyPID is the process id of Envoy.
func (p *Proxy) EnvoyPID() (int, error) {
	pids, err := p.Agent.Children("envoy")
	if err != nil {
		return 0, err
	}
	if len(pids) != 1 {
		return 0, fmt.Errorf("%s runs %d Envoys, want 1", p.Agent.Name, len(pids))
	}
	return pids[0], nil
}

// KillAll ends agent, Envoy and application as kill -9 does.
func (p *Proxy) KillAll() error {
	pid, err := p.EnvoyPID()
	if err != nil {
		return err
	}
	p.Agent.Kill()
	err = syscall.Kill(pid, syscall.SIGKILL)
	p.App.Kill()
	if errors.Is(err, syscall.ESRCH) { // it died with its agent
		return nil
	}
	return err
}

// EnvoyGet asks Envoy's admin interface, "/clusters?format=json".
func (p *Proxy) EnvoyGet(ctx context.Context, path string) (string, error) {
	return get(ctx, p.envoy, "http://envoy"+path)
}

// EnvoyJSON is EnvoyGet, decoded.
func (p *Proxy) EnvoyJSON(ctx context.Context, path string, into any) error {
	body, err := p.EnvoyGet(ctx, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(body), into); err != nil {
		return fmt.Errorf("decode what Envoy answers to %s: %w", path, err)
	}
	return nil
}

// Stats returns the counters and gauges of Envoy whose whole name matches the regular expression.
func (p *Proxy) Stats(ctx context.Context, filter string) (map[string]int64, error) {
	var all struct {
		Stats []struct {
			Name  string `json:"name"`
			Value int64  `json:"value"`
		} `json:"stats"`
	}
	if err := p.EnvoyJSON(ctx, "/stats?format=json&filter="+url.QueryEscape("^(?:"+filter+")$"), &all); err != nil {
		return nil, err
	}
	stats := map[string]int64{}
	for _, s := range all.Stats {
		if s.Name != "" { // histograms come without one
			stats[s.Name] = s.Value
		}
	}
	return stats, nil
}

// Endpoints returns the addresses that Envoy has for a service, and of each whether outlier detection has taken it out.
func (p *Proxy) Endpoints(ctx context.Context, service string) (map[string]bool, error) {
	var all struct {
		Clusters []struct {
			Name  string `json:"name"`
			Hosts []struct {
				Address struct {
					Socket struct {
						Address string `json:"address"`
						Port    int    `json:"port_value"`
					} `json:"socket_address"`
				} `json:"address"`
				Health struct {
					Ejected bool `json:"failed_outlier_check"`
				} `json:"health_status"`
			} `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	if err := p.EnvoyJSON(ctx, "/clusters?format=json", &all); err != nil {
		return nil, err
	}
	for _, c := range all.Clusters {
		if c.Name != service {
			continue
		}
		endpoints := map[string]bool{}
		for _, h := range c.Hosts {
			a := h.Address.Socket
			endpoints[net.JoinHostPort(a.Address, strconv.Itoa(a.Port))] = h.Health.Ejected
		}
		return endpoints, nil
	}
	return nil, fmt.Errorf("%s has no cluster %s", p.Name, service)
}
