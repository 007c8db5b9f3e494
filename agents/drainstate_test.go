package agents_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/meshview"
)

// wantDrainState waits for a DrainState, and checks it.
func (a *agent) wantDrainState(want *agentv1.DrainState) {
	a.h.t.Helper()
	got := next(a, "a drain state", a.drains)
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		a.h.t.Fatalf("drain state (-want +got):\n%s", diff)
	}
}

func TestDrainState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPodHarness(t, podTokens{"1": db0("1")})
		put := func(drain *mesh.Drain) {
			d := dataplane("default", "db-0.shop", "db")
			d.Identity, d.Drain = mesh.Identity{Path: "/ns/shop/sa/db", Instance: "1"}, drain
			h.put(d)
		}
		h.has("1")
		a := h.pod("1")
		a.mustJoin()
		a.connect(false)
		a.wantDrainState(&agentv1.DrainState{})
		put(&mesh.Drain{Node: "node a goes"})
		a.wantDrainState(&agentv1.DrainState{Node: "node a goes"})
		put(&mesh.Drain{Node: "node a goes", ServesOn: "there is no other"})
		a.wantDrainState(&agentv1.DrainState{Node: "node a goes", ServesOn: "there is no other"})
		put(&mesh.Drain{Node: "node a goes", ServesOn: "there is no other"}) // unchanged, so no message is sent
		put(&mesh.Drain{Terminating: true, Administrator: "pod is drained"})
		a.wantDrainState(&agentv1.DrainState{Terminating: true, Administrator: "pod is drained"})

		a.leave()
		a.connect(false) // another replica may have sent another state to the agent
		a.wantDrainState(&agentv1.DrainState{Terminating: true, Administrator: "pod is drained"})
		put(nil)
		a.wantDrainState(&agentv1.DrainState{})
		if len(a.drains) > 0 {
			t.Errorf("sent twice: %v", <-a.drains)
		}
	})
}

// TestAdministratorDrains checks that an administrator's drain of a proxy outside pods survives a restart of the
// control plane, until the administrator ends it.
func TestAdministratorDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.fill("web-1")
		a := h.joined("web-1")
		a.wantDrainState(&agentv1.DrainState{})
		set := func(reason *string, before string) {
			t.Helper()
			_, p := h.builder.View().Proxy("default/web-1")
			if got, err := h.server.SetDrained(t.Context(), p, reason); err != nil || got != before {
				t.Errorf("SetDrained() = %q, %v, want %q", got, err, before)
			}
		}
		long := "new disk " + strings.Repeat("x", 300)
		text := "dataplane is drained: " + long[:256]
		set(&long, "")
		a.wantDrainState(&agentv1.DrainState{Administrator: text})
		h.becomes("web", meshview.Draining, meshview.NoReason)
		a.leave()
		h.restart()
		h.fill("web-1")
		a.connect(false) // ends only the agent's own drain
		a.wantDrainState(&agentv1.DrainState{Administrator: text})
		set(new(""), text)
		a.wantDrainState(&agentv1.DrainState{Administrator: "dataplane is drained"})
		set(nil, "dataplane is drained")
		a.wantDrainState(&agentv1.DrainState{})
		h.becomes("web", meshview.Ready, meshview.NoReason)
		set(nil, "")
	})
}

// TestRecordOfADrainIsBad starts with records as a disk failure may leave them: the proxy stays drained, and its agent
// gets the DrainState.
func TestRecordOfADrainIsBad(t *testing.T) {
	tests := map[string]struct{ record, text string }{
		"not UTF-8": {"new \xff disk\n", "dataplane is drained: new ? disk"},
		"empty":     {"", "dataplane is drained"},
		"long":      {strings.Repeat("x", 1<<20), "dataplane is drained: " + strings.Repeat("x", 256)},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			h := newHarness(t, nil)
			h.fill("web-1")
			a := h.agent("web-1")
			a.mustJoin()
			if err := h.state.Write("drained/default/web-1", []byte(tc.record)); err != nil {
				t.Fatal(err)
			}
			h.restart()
			h.fill("web-1")
			a.connect(false)
			a.wantDrainState(&agentv1.DrainState{Administrator: tc.text})
		})
	}
}

func TestAdministratorDrainsNoPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPodHarness(t, podTokens{"1": db0("1")})
		h.has("1")
		_, p := h.builder.View().Proxy("default/db-0.shop")
		_, err := h.server.SetDrained(t.Context(), p, new("x"))
		wantStatus(t, err, codes.FailedPrecondition, "drain pod/NAME")
	})
}
