package agentv1

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
)

// A forwarded report has the durations at the time of forwarding, and no fields of later versions.
func TestLivenessIsPassedOn(t *testing.T) {
	at := time.Now()
	held := func(failing time.Duration) *HeldLiveness {
		return &HeldLiveness{Container: "app", Failing: durationpb.New(failing), Reason: "refused", Grant: "g", Told: true}
	}
	said := &Liveness{Held: []*HeldLiveness{held(time.Minute)}, Passing: []string{"cache"}, Unused: []string{"h"}}
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 1)
	said.ProtoReflect().SetUnknown(unknown)
	said.GetHeld()[0].ProtoReflect().SetUnknown(unknown)
	l := ReportedLiveness{Report: said, At: at}
	want := &Liveness{Held: []*HeldLiveness{held(time.Hour + time.Minute)}, Passing: []string{"cache"}, Unused: []string{"h"}}
	got := l.AsOf(at.Add(time.Hour))
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("AsOf() (-want +got):\n%s", diff)
	}
	if !l.SameAs(ReportedLiveness{Report: got, At: at}) || l.SameAs(ReportedLiveness{}) {
		t.Error("SameAs() compares something else than what is said")
	}
}
