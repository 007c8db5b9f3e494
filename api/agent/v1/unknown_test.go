package agentv1_test

import (
	"os"
	"regexp"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// Each feature that this version declares is in knownFeatures.
func TestFeaturesAreKnown(t *testing.T) {
	source, err := os.ReadFile("session.go")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`(?m)^\tFeature\w+ += "([a-z-]+)"$`).FindAllStringSubmatch(string(source), -1)
	if len(named) < 12 {
		t.Errorf("there are only %d features", len(named))
	}
	for _, f := range named {
		if agentv1.UnknownFeatures([]string{f[1]}) != 0 {
			t.Errorf("%s is taken for one of a later version", f[1])
		}
	}
	if n := agentv1.UnknownFeatures([]string{"later", agentv1.FeaturePong, "", "later"}); n != 3 {
		t.Errorf("%d features are unknown, want 3", n)
	}
}

func TestHasUnknownFields(t *testing.T) {
	later := func(m proto.Message) {
		m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
	}
	held := &agentv1.HeldLiveness{Container: "app"}
	m := &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Liveness{Liveness: &agentv1.Liveness{
		Held: []*agentv1.HeldLiveness{{Container: "other"}, held}, Passing: []string{"a"},
	}}}
	if agentv1.HasUnknownFields(m) {
		t.Error("all is known")
	}
	later(held)
	if !agentv1.HasUnknownFields(m) {
		t.Error("a field of an entry of a list is not found")
	}
	inUse := &agentv1.InUse{}
	later(inUse)
	if !agentv1.HasUnknownFields(&agentv1.Hello{InUse: inUse}) || !agentv1.HasUnknownFields(inUse) || agentv1.HasUnknownFields(&agentv1.Hello{}) {
		t.Error("a field of a message in a message is not found, or of none is")
	}
}
