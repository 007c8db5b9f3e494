package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
)

func (s *scene) loseControlPlane(ctx context.Context) ([]string, error) {
	load := s.load(ctx)
	defer load.Stop()
	s.machine.ControlPlane.Kill()
	r := settle(ctx, load, 2*time.Second)
	return []string{"for 2 s without it: " + r.String()}, none(load.Stop())
}

func (s *scene) regainControlPlane(ctx context.Context) ([]string, error) {
	load := s.load(ctx)
	defer load.Stop()
	live := []*harness.Proxy{s.a, s.b[0]}
	before := map[string][]string{}
	for _, p := range live {
		state, err := received(ctx, p)
		if err != nil {
			return nil, err
		}
		before[p.Name] = state
	}
	if err := s.machine.StartControlPlane(ctx); err != nil {
		return nil, err
	}
	started := time.Now()
	s.board.progress("waiting for the proxies to connect again")
	for _, p := range live {
		if err := s.waitSynced(ctx, p); err != nil {
			return nil, err
		}
	}
	seen := []string{fmt.Sprintf("agents and Envoys are connected again, %.1f s after it was ready", time.Since(started).Seconds())}
	settle(ctx, load, 500*time.Millisecond)
	for _, p := range live {
		after, err := received(ctx, p)
		if err != nil {
			return seen, err
		}
		if !slices.Equal(after, before[p.Name]) {
			return seen, fmt.Errorf("the Envoy of %s was sent something: %q, before %q", p.Name,
				without(after, before[p.Name]), without(before[p.Name], after))
		}
	}
	total := load.Stop()
	return append(seen, "their Envoys were sent nothing: all is as it was", total.String()), none(total)
}

// received describes all that an Envoy got from the control plane, and when it last did: it stays the same as long as
// nothing comes.
func received(ctx context.Context, p *harness.Proxy) ([]string, error) {
	// answers of each type, whatever was in them
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

// without returns the lines that the other does not have.
func without(lines, other []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return slices.Contains(other, line) })
}

// waitSynced waits until agent and Envoy of a proxy are connected, and Envoy has all that it should have.
func (s *scene) waitSynced(ctx context.Context, p *harness.Proxy) error {
	return harness.Poll(ctx, 25*time.Second, p.Name+" to connect", func(ctx context.Context) error {
		out, err := s.machine.Ctl(ctx, "get", "proxy", p.Name, "-o", "json")
		if err != nil {
			return err
		}
		var proxies []struct {
			Agent   *struct{} `json:"agent"`
			Streams []struct {
				Types []struct {
					Kind   string `json:"kind"`
					Synced bool   `json:"synced"`
				} `json:"types"`
			} `json:"streams"`
		}
		if err := json.Unmarshal([]byte(out), &proxies); err != nil {
			return fmt.Errorf("decode what sondectl prints: %w", err)
		}
		if len(proxies) != 1 || proxies[0].Agent == nil || len(proxies[0].Streams) != 1 {
			return errors.New("agent or Envoy is not connected")
		}
		types := proxies[0].Streams[0].Types
		if len(types) == 0 {
			return errors.New("its Envoy has asked for nothing yet")
		}
		for _, t := range types {
			if !t.Synced {
				return fmt.Errorf("%s are not in place", t.Kind)
			}
		}
		return nil
	})
}
