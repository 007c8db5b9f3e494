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

// KillAll ends the agent, Envoy and application as kill -9 does, and returns when the inbound accepts no
// connections.
func (p *Proxy) KillAll(ctx context.Context) error {
	pid, err := p.EnvoyPID()
	if err != nil {
		return err
	}
	p.Agent.Kill()
	err = syscall.Kill(pid, syscall.SIGKILL)
	p.App.Kill()
	if err != nil && !errors.Is(err, syscall.ESRCH) { // ESRCH: Envoy has ended with its agent
		return err
	}
	return Poll(ctx, "the end of the Envoy of "+p.Name, func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.Inbound)
		if err != nil {
			return nil //nolint:nilerr // the port is closed
		}
		return errors.Join(errors.New("it still listens"), c.Close())
	})
}

// EnvoyGet requests a path, such as "/clusters?format=json", from Envoy's admin interface.
func (p *Proxy) EnvoyGet(ctx context.Context, path string) (string, error) {
	return Get(ctx, p.envoy, "http://envoy"+path)
}

// EnvoyJSON is like EnvoyGet, and decodes the response.
func (p *Proxy) EnvoyJSON(ctx context.Context, path string, into any) error {
	body, err := p.EnvoyGet(ctx, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(body), into); err != nil {
		return fmt.Errorf("decode Envoy's response to %s: %w", path, err)
	}
	return nil
}

// Stats returns Envoy's counters and gauges whose whole name matches a regular expression.
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
		if s.Name != "" { // histograms have no name here
			stats[s.Name] = s.Value
		}
	}
	return stats, nil
}

// Endpoint is Envoy's state of one endpoint of a cluster.
type Endpoint struct {
	Ejected     bool // outlier detection ejected the endpoint
	Connections int  // open connections
}

// Endpoints returns Envoy's endpoints of a service, by address.
func (p *Proxy) Endpoints(ctx context.Context, service string) (map[string]Endpoint, error) {
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
				Stats []struct {
					Name  string `json:"name"`
					Value int    `json:"value,string"`
				} `json:"stats"`
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
		endpoints := map[string]Endpoint{}
		for _, h := range c.Hosts {
			e := Endpoint{Ejected: h.Health.Ejected}
			for _, stat := range h.Stats {
				if stat.Name == "cx_active" {
					e.Connections = stat.Value
				}
			}
			a := h.Address.Socket
			endpoints[net.JoinHostPort(a.Address, strconv.Itoa(a.Port))] = e
		}
		return endpoints, nil
	}
	return nil, fmt.Errorf("%s has no cluster %s", p.Name, service)
}

// HasEndpoints returns an error unless Envoy has exactly these endpoint addresses for a service.
func (p *Proxy) HasEndpoints(ctx context.Context, service string, want ...string) error {
	got, err := p.Endpoints(ctx, service)
	if err != nil {
		return err
	}
	for _, address := range want {
		if _, ok := got[address]; !ok {
			return fmt.Errorf("it lacks %s: %v", address, got)
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("it has %v, want %v", got, want)
	}
	return nil
}
