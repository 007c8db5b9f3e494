package agents_test

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// hasCounted returns an agent's report of that many requests.
func hasCounted(n uint64, asked bool) *agentv1.AgentMessage {
	said := &agentv1.Plaintext{Asked: asked, Inbounds: []*agentv1.PlaintextInbound{{
		Port: 8080, Requests: true, Sources: []*agentv1.PlaintextSource{{
			Address: "10.0.0.9", Tally: &agentv1.PlaintextTally{Count: n, First: durationpb.New(time.Second), Last: durationpb.New(time.Second)},
		}},
	}}}
	return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Plaintext{Plaintext: said}}
}

// TestAgentsAreAskedForPlaintext requests counts from an agent that reported them a second ago.
func TestAgentsAreAskedForPlaintext(t *testing.T) {
	tests := map[string]struct {
		features []string
		asked    bool
		answer   *agentv1.AgentMessage // nil for no answer
		want     uint64
		fresh    bool
		after    time.Duration
	}{
		"it answers":           {features: []string{agentv1.FeatureAskPlaintext}, asked: true, answer: hasCounted(4, true), want: 4, fresh: true},
		"it hangs":             {features: []string{agentv1.FeatureAskPlaintext}, asked: true, want: 3, after: 2 * time.Second},
		"it reports by itself": {features: []string{agentv1.FeatureAskPlaintext}, asked: true, answer: hasCounted(4, false), want: 3, after: 2 * time.Second},
		"it is too old":        {features: []string{agentv1.FeaturePong}, want: 3},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, a := joined(t, nil)
				a.features = tc.features
				a.connect(false)
				a.send(hasCounted(3, false))
				synctest.Wait()
				<-time.After(time.Second)
				began := time.Now()
				result := make(chan map[mesh.ID]bool, 1)
				go func() { result <- h.server.RefreshPlaintext(context.Background(), []string{"default", "other"}) }()
				if tc.asked && a.receive().GetAskPlaintext() == nil {
					t.Fatal("the agent gets no query")
				}
				if tc.answer != nil {
					a.send(tc.answer)
				}
				fresh := slices.Collect(maps.Keys(<-result))
				if got := time.Since(began); got != tc.after {
					t.Errorf("it took %s, want %s", got, tc.after)
				}
				if diff := cmp.Diff(map[bool][]mesh.ID{true: {"default/web-1"}}[tc.fresh], fresh); diff != "" {
					t.Errorf("agents with an answer (-want +got):\n%s", diff)
				}
				proxies, _, _ := h.server.Plaintext("default")
				if got := proxies["default/web-1"].Ports[0].Sources[netip.MustParseAddr("10.0.0.9")].Count; got != tc.want {
					t.Errorf("%d requests counted, want %d", got, tc.want)
				}
			})
		})
	}
}

// TestAgentsOfOtherMeshesAreNotAsked also checks the report for other replicas.
func TestAgentsOfOtherMeshesAreNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joined(t, nil)
		a.features = []string{agentv1.FeatureAskPlaintext}
		a.connect(false)
		if got := h.server.AskPlaintext(t.Context(), []string{"other"}); len(got) > 0 {
			t.Errorf("AskPlaintext() = %v", got)
		}
		said := make(chan uint64, 1)
		go func() {
			for _, p := range h.server.AskPlaintext(context.Background(), []string{"default"}) {
				said <- p.GetPlaintext().GetSaid().GetInbounds()[0].GetSources()[0].GetTally().GetCount()
			}
		}()
		if a.receive().GetAskPlaintext() == nil {
			t.Fatal("the agent gets no query")
		}
		a.send(hasCounted(7, true))
		if got := <-said; got != 7 {
			t.Errorf("other replicas get %d requests, want 7", got)
		}
	})
}
