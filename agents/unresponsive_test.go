package agents_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// TestUnresponsive pings an agent with a session.
func TestUnresponsive(t *testing.T) {
	tests := map[string]struct {
		features []string
		mesh     string
		asked    bool
		answers  bool
		want     []mesh.ID
		after    time.Duration
	}{
		"it answers":               {features: []string{agentv1.FeaturePong}, asked: true, answers: true},
		"it hangs":                 {features: []string{agentv1.FeaturePong}, asked: true, want: []mesh.ID{"default/web-1"}, after: 2 * time.Second},
		"it hangs, and is of it":   {features: []string{agentv1.FeaturePong}, mesh: "default", asked: true, want: []mesh.ID{"default/web-1"}, after: 2 * time.Second},
		"it is of another mesh":    {features: []string{agentv1.FeaturePong}, mesh: "other"},
		"it is too old to answer":  {},
		"it has no feature for it": {features: []string{agentv1.FeatureAskPlaintext}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, a := joined(t, nil)
				a.features = tc.features
				a.connect(false)
				synctest.Wait()
				began := time.Now()
				result := make(chan []mesh.ID, 1)
				go func() {
					silent, _ := h.server.Unresponsive(context.Background(), tc.mesh)
					result <- slices.Collect(maps.Keys(silent))
				}()
				if tc.asked && a.receive().GetPing() == nil {
					t.Fatal("the agent gets no ping")
				}
				if tc.answers {
					a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Pong{Pong: &agentv1.Pong{}}})
				}
				if diff := cmp.Diff(tc.want, <-result); diff != "" {
					t.Errorf("agents without an answer (-want +got):\n%s", diff)
				}
				if got := time.Since(began); got != tc.after {
					t.Errorf("it took %s, want %s", got, tc.after)
				}
			})
		})
	}
}
