package agents_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// toDrain waits until the agent is told whether to drain, and checks it.
func (a *agent) toDrain(want *agentv1.DrainState) {
	a.h.t.Helper()
	select {
	case got := <-a.drains:
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			a.h.t.Fatalf("drain state (-want +got):\n%s", diff)
		}
	case <-time.After(patience):
		a.h.t.Fatalf("told no drain state, want %v", want)
	}
}

func TestDrainState(t *testing.T) {
	h := newPodHarness(t, podTokens{"1": db0("1")})
	put := func(drain *mesh.Drain) {
		d := dataplane("default", "db-0.shop", "db")
		d.Identity, d.Drain = mesh.Identity{Path: "/ns/shop/sa/db", Instance: "1"}, drain
		h.put(d)
	}
	h.has("1")
	a := h.pod("1")
	if err := a.join(); err != nil {
		t.Fatal(err)
	}
	a.connect(false)
	a.toDrain(&agentv1.DrainState{})
	put(&mesh.Drain{Node: "node a goes"})
	a.toDrain(&agentv1.DrainState{Node: "node a goes"})
	put(&mesh.Drain{Node: "node a goes", ServesOn: "there is no other"})
	a.toDrain(&agentv1.DrainState{Node: "node a goes", ServesOn: "there is no other"})
	put(&mesh.Drain{Node: "node a goes", ServesOn: "there is no other"}) // and so nothing is sent
	put(&mesh.Drain{Terminating: true, Administrator: "pod is drained"})
	a.toDrain(&agentv1.DrainState{Terminating: true, Administrator: "pod is drained"})

	a.leave()
	a.connect(false) // it may have been told something else by another replica
	a.toDrain(&agentv1.DrainState{Terminating: true, Administrator: "pod is drained"})
	put(nil)
	a.toDrain(&agentv1.DrainState{})
	if len(a.drains) > 0 {
		t.Errorf("told twice: %v", <-a.drains)
	}
}

// TestNoDrainStateOfWrittenDataplanes keeps silent where nothing is known of pods and nodes.
func TestNoDrainStateOfWrittenDataplanes(t *testing.T) {
	h := newHarness(t, nil)
	h.fill("web-1")
	a := h.agent("web-1")
	if err := a.join(); err != nil {
		t.Fatal(err)
	}
	a.connect(true)
	if m := a.receive(); m.GetDrainRecorded() == nil {
		t.Fatalf("got %v, want DrainRecorded", m)
	}
	if len(a.drains) > 0 {
		t.Errorf("told %v", <-a.drains)
	}
}
