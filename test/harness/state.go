package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// ProxyState is what sondectl shows of a proxy.
type ProxyState struct {
	// Agent is nil while it has no session.
	Agent *struct {
		LeafSerial   string `json:"leafSerial"`
		EnvoyVersion string `json:"envoyVersion"`
	} `json:"agent"`
	AgentState AgentState `json:"agentState"`
	// OtherWorkload says how the certificate differs from the Dataplane.
	OtherWorkload string `json:"otherWorkload"`
	Streams       []struct {
		ConnectedSince time.Time `json:"connectedSince"`
		Types          []struct {
			Kind   string `json:"kind"`
			Synced bool   `json:"synced"`
			NACKs  []NACK `json:"nacks"`
		} `json:"types"`
	} `json:"streams"`
	Draining bool `json:"draining"`
}

// AgentState is what sondectl shows of an agent, connected or not.
type AgentState struct {
	Phase   string `json:"phase"`
	Refusal string `json:"refusal"`
}

// NACK is what sondectl shows of a resource that Envoy has refused.
type NACK struct {
	Resource string `json:"resource"`
	Reason   string `json:"reason"`
}

// State asks sondectl for the proxy's state.
func (p *Proxy) State(ctx context.Context) (*ProxyState, error) {
	out, err := p.machine.Ctl(ctx, "get", "proxy", p.Name, "--mesh="+p.Mesh, "-o", "json")
	if err != nil {
		return nil, err
	}
	var states []*ProxyState
	if err := json.Unmarshal([]byte(out), &states); err != nil {
		return nil, fmt.Errorf("decode what sondectl prints: %w", err)
	}
	if len(states) != 1 {
		return nil, fmt.Errorf("sondectl knows %d proxies %s, want 1", len(states), p.Name)
	}
	return states[0], nil
}

// AgentIs is an error unless the control plane shows the agent in that phase.
func (p *Proxy) AgentIs(ctx context.Context, phase string) error {
	s, err := p.State(ctx)
	if err == nil && s.AgentState.Phase != phase {
		err = fmt.Errorf("its agent is %+v, want %s", s.AgentState, phase)
	}
	return err
}

// Synced is an error unless agent and Envoy are connected, and Envoy has everything that it should have.
func (p *Proxy) Synced(ctx context.Context) error {
	s, err := p.State(ctx)
	if err != nil {
		return err
	}
	if s.Agent == nil || len(s.Streams) != 1 {
		return errors.New("agent or Envoy is not connected")
	}
	if len(s.Streams[0].Types) < 2 { // clusters and listeners at least
		return errors.New("its Envoy has not asked for everything yet")
	}
	for _, t := range s.Streams[0].Types {
		if !t.Synced {
			return fmt.Errorf("%s are not in place", t.Kind)
		}
	}
	return nil
}

// Received describes what Envoy got from the control plane, and when. It stays the same as long as Envoy gets nothing new.
func (p *Proxy) Received(ctx context.Context) ([]string, error) {
	stats, err := p.Stats(ctx, `(cluster_manager\.cds|listener_manager\.lds|cluster\..*)\.update_(success|rejected)`)
	if err != nil {
		return nil, err
	}
	if stats["cluster_manager.cds.update_success"] == 0 || stats["listener_manager.lds.update_success"] == 0 {
		return nil, fmt.Errorf("the Envoy of %s does not count its updates: %v", p.Name, stats)
	}
	dump, err := p.EnvoyGet(ctx, "/config_dump?include_eds")
	if err != nil {
		return nil, err
	}
	var lines []string
	for line := range strings.Lines(dump) {
		if strings.Contains(line, `"version_info"`) || strings.Contains(line, `"last_updated"`) {
			lines = append(lines, strings.Trim(line, " ,\n"))
		}
	}
	slices.Sort(lines)
	for _, name := range slices.Sorted(maps.Keys(stats)) {
		lines = append(lines, fmt.Sprintf("%s: %d", name, stats[name]))
	}
	return lines, nil
}
