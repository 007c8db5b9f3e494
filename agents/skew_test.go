package agents_test

import (
	"log/slog"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/agents"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// extended adds a field of a later version to a message.
func extended[M proto.Message](m M) M {
	m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
	return m
}

// TestWhatIsOfALaterVersionIsCounted checks that messages of later versions are processed as far as their fields are
// known, and that unknown fields are counted.
func TestWhatIsOfALaterVersionIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joined(t, nil)
		a.open()
		a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Hello{Hello: extended(&agentv1.Hello{
			InUse: a.inUse(), Features: []string{agentv1.FeaturePong, "later", "later still"},
		})}})
		if a.receive().GetWelcome() == nil {
			t.Fatal("no Welcome")
		}
		counted := func(features, fields float64) {
			t.Helper()
			h.eventually("it is counted", func() bool {
				return h.metric("sonde_agents_unknown_features_total", "") == features && h.metric("sonde_agents_unknown_fields_total", "") == fields
			})
		}
		counted(2, 1)
		a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_InUse{InUse: a.inUse()}})
		a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_InUse{InUse: extended(a.inUse())}})
		counted(2, 2)
		if n := h.metric("sonde_agents_unknown_messages_total", ""); n != 0 {
			t.Errorf("%v messages are counted as unknown", n)
		}
	})
}

func TestVersionOutsideOfTheSkew(t *testing.T) {
	const tooOld = "agent v0.1.0 is more than one minor version older than the control plane, v0.3.0: restart its workload to get the current agent"
	tests := map[string]struct{ version, kind, want string }{
		"too old":      {"v0.1.0", "too-old", tooOld},
		"too new":      {"v0.4.0", "too-new", "agent v0.4.0 is newer than the control plane, v0.3.0: upgrade the control plane, or after a rollback restart the workload"},
		"supported":    {"v0.2.9", "", ""},
		"no version":   {"(devel)", "", ""},
		"none at all":  {"", "", ""},
		"a long text":  {"v0.1.0-" + string(make([]byte, 10_000)), "", ""},
		"not only one": {"v0.1.0\nlevel=ERROR", "", ""},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			var log logtest.Buffer
			h, a := joined(t, func(o *agents.Options) {
				o.Version, o.Logger = "v0.3.0", slog.New(slog.NewTextHandler(&log, nil))
			})
			a.version = &agentv1.Version{Sonde: tc.version}
			a.mustJoin()
			warnings := log.Lines("agent version is not supported", "level=WARN")
			if want := tc.want != ""; (len(warnings) == 1) != want || want && len(log.Lines(tc.want)) != 1 {
				t.Errorf("warnings %q, want %q", warnings, tc.want)
			}
			if tc.kind != "" && h.metric("sonde_agents_joins_unsupported_total", tc.kind) != 1 {
				t.Error("it is not counted")
			}
			a.open()
			a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Hello{Hello: &agentv1.Hello{InUse: a.inUse(), Version: a.version}}})
			if a.receive().GetWelcome() == nil {
				t.Fatal("no Welcome")
			}
			if got := h.server.Agents()[mesh.MakeID("default", "web-1")].GetVersionSkew(); got != tc.want {
				t.Errorf("the session has %q, want %q", got, tc.want)
			}
		})
	}
}
