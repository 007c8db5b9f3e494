package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/test/harness"
)

// nack is what sondectl says of a resource that an Envoy refuses.
type nack struct {
	Resource string `json:"resource"`
	Reason   string `json:"reason"`
}

// proxyState is what sondectl says of a proxy.
type proxyState struct {
	Agent   *struct{} `json:"agent"`
	Streams []struct {
		Types []struct {
			Kind   string `json:"kind"`
			Synced bool   `json:"synced"`
			NACKs  []nack `json:"nacks"`
		} `json:"types"`
	} `json:"streams"`
}

func stateOf(ctx context.Context, m *harness.Machine, p *harness.Proxy) (*proxyState, error) {
	out, err := m.Ctl(ctx, "get", "proxy", p.Name, "-o", "json")
	if err != nil {
		return nil, err
	}
	var states []*proxyState
	if err := json.Unmarshal([]byte(out), &states); err != nil {
		return nil, fmt.Errorf("decode what sondectl prints: %w", err)
	}
	if len(states) != 1 || states[0].Agent == nil || len(states[0].Streams) != 1 {
		return nil, errors.New("agent or Envoy is not connected")
	}
	return states[0], nil
}

func (s *proxyState) nacks() []nack {
	var all []nack
	for _, t := range s.Streams[0].Types {
		all = append(all, t.NACKs...)
	}
	return all
}

func (s *proxyState) synced() error {
	types := s.Streams[0].Types
	if len(types) == 0 {
		return errors.New("its Envoy has asked for nothing yet")
	}
	for _, t := range types {
		if !t.Synced {
			return fmt.Errorf("%s are not in place: %v", t.Kind, t.NACKs)
		}
	}
	return nil
}

// synced waits until agent and Envoy are connected, and Envoy has taken all that it should have.
func synced(t *testing.T, m *harness.Machine, p *harness.Proxy) {
	t.Helper()
	poll(t, p.Name+" to have everything", func(ctx context.Context) error {
		s, err := stateOf(ctx, m, p)
		if err != nil {
			return err
		}
		return s.synced()
	})
}

// refuses waits until these listeners, and nothing else, are reported as refused, since Envoy cannot bind them.
func refuses(t *testing.T, m *harness.Machine, p *harness.Proxy, listeners ...string) {
	t.Helper()
	slices.Sort(listeners)
	poll(t, fmt.Sprintf("%s to refuse %q", p.Name, listeners), func(ctx context.Context) error {
		s, err := stateOf(ctx, m, p)
		if err != nil {
			return err
		}
		var refused []string
		for _, n := range s.nacks() {
			if !strings.Contains(n.Reason, cannotBind) {
				return fmt.Errorf("it refuses %s: %s", n.Resource, n.Reason)
			}
			refused = append(refused, n.Resource)
		}
		slices.Sort(refused)
		if !slices.Equal(refused, listeners) {
			return fmt.Errorf("it refuses %q", refused)
		}
		return nil
	})
}
