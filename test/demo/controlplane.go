package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
)

func (s *scene) loseControlPlane(ctx context.Context) ([]string, error) {
	load := s.load(ctx)
	defer load.Stop()
	s.machine.ControlPlane.Kill()
	r := settle(ctx, load, 2*time.Second)
	return []string{"2 s without it: " + r.String()}, none(load.Stop())
}

func (s *scene) regainControlPlane(ctx context.Context) ([]string, error) {
	load := s.load(ctx)
	defer load.Stop()
	live := []*harness.Proxy{s.a, s.b[0]}
	before := map[string][]string{}
	for _, p := range live {
		state, err := p.Received(ctx)
		if err != nil {
			return nil, err
		}
		before[p.Name] = state
	}
	if err := s.machine.StartControlPlane(ctx); err != nil {
		return nil, err
	}
	started := time.Now()
	s.board.Progress("waiting for the proxies to reconnect")
	for _, p := range live {
		if err := harness.Poll(ctx, p.Name+" to connect", p.Synced); err != nil {
			return nil, err
		}
	}
	seen := []string{fmt.Sprintf("agents and Envoys reconnected %.1f s after it was ready", time.Since(started).Seconds())}
	settle(ctx, load, 500*time.Millisecond)
	for _, p := range live {
		after, err := p.Received(ctx)
		if err != nil {
			return seen, err
		}
		if !slices.Equal(after, before[p.Name]) {
			return seen, fmt.Errorf("the Envoy of %s received something: %q, before %q", p.Name,
				without(after, before[p.Name]), without(before[p.Name], after))
		}
	}
	total := load.Stop()
	return append(seen, "their Envoys received nothing: no configuration has changed", total.String()), none(total)
}

// without returns the lines that other does not contain.
func without(lines, other []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return slices.Contains(other, line) })
}
