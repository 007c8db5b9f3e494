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

// ProxyState is the state of a proxy as sondectl shows it.
type ProxyState struct {
	// Agent is nil if the agent has no session.
	Agent *struct {
		LeafSerial   string `json:"leafSerial"`
		EnvoyVersion string `json:"envoyVersion"`
	} `json:"agent"`
	AgentState AgentState `json:"agentState"`
	// OtherWorkload describes how the certificate differs from the Dataplane.
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

// AgentState is the state of an agent, connected or not, as sondectl shows it.
type AgentState struct {
	Phase   string `json:"phase"`
	Refusal string `json:"refusal"`
}

// NACK is a refused resource as sondectl shows it.
type NACK struct {
	Resource string `json:"resource"`
	Reason   string `json:"reason"`
}

// State gets the proxy's state with sondectl.
func (p *Proxy) State(ctx context.Context) (*ProxyState, error) {
	out, err := p.machine.Ctl(ctx, "get", "proxy", p.Name, "--mesh="+p.Mesh, "-o", "json")
	if err != nil {
		return nil, err
	}
	var states []*ProxyState
	if err := json.Unmarshal([]byte(out), &states); err != nil {
		return nil, fmt.Errorf("decode the output of sondectl: %w", err)
	}
	if len(states) != 1 {
		return nil, fmt.Errorf("sondectl shows %d proxies %s, want 1", len(states), p.Name)
	}
	return states[0], nil
}

// AgentIs returns an error unless sondectl shows the agent in that phase.
func (p *Proxy) AgentIs(ctx context.Context, phase string) error {
	s, err := p.State(ctx)
	if err == nil && s.AgentState.Phase != phase {
		err = fmt.Errorf("its agent is %+v, want %s", s.AgentState, phase)
	}
	return err
}

// Synced returns an error unless agent and Envoy are connected and Envoy has accepted its whole
// configuration.
func (p *Proxy) Synced(ctx context.Context) error {
	s, err := p.State(ctx)
	if err != nil {
		return err
	}
	if s.Agent == nil || len(s.Streams) != 1 {
		return errors.New("agent or Envoy is not connected")
	}
	if len(s.Streams[0].Types) < 2 { // at least clusters and listeners
		return errors.New("envoy has not subscribed to all types yet")
	}
	for _, t := range s.Streams[0].Types {
		if !t.Synced {
			return fmt.Errorf("%s are not synced", t.Kind)
		}
	}
	return nil
}

// Received describes the configuration that Envoy received, and when. It stays the same until Envoy receives
// something new.
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
