package strict

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/sonde-mesh/sonde/agents/observed"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// tellers tells which agents and Envoys report, for all meshes.
type tellers struct {
	agents  map[mesh.ID]*adminv1.Agent
	states  map[mesh.ID]*adminv1.AgentState
	streams map[mesh.ID][]*adminv1.Stream
	// fresh has the proxies whose agents have just reported.
	fresh map[mesh.ID]bool
}

// gaps returns the proxies of a mesh without a current report, sorted.
func (t *tellers) gaps(m *meshview.Mesh, telling map[mesh.ID]observed.ProxyPlaintext) []*adminv1.StrictGap {
	var gaps []*adminv1.StrictGap
	for name := range m.Proxies.All() {
		id := mesh.MakeID(m.Spec.Name, name)
		_, tells := telling[id]
		if reason := gapOf(tells, t.fresh[id], t.agents[id], t.states[id], newest(t.streams[id])); reason != "" {
			gaps = append(gaps, &adminv1.StrictGap{Dataplane: name, Reason: reason})
		}
	}
	slices.SortFunc(gaps, func(a, b *adminv1.StrictGap) int { return cmp.Compare(a.GetDataplane(), b.GetDataplane()) })
	return gaps
}

// newest returns the stream that was opened last, nil without streams: earlier ones belong to the same Envoy, or to a
// previous one.
func newest(streams []*adminv1.Stream) *adminv1.Stream {
	if len(streams) == 0 {
		return nil
	}
	return slices.MaxFunc(streams, func(a, b *adminv1.Stream) int {
		return a.GetConnectedSince().AsTime().Compare(b.GetConnectedSince().AsTime())
	})
}

// gapOf returns why a proxy does not report its plaintext traffic, "" if it does: tells means that its agent has
// reported, and fresh that it has just now. agent is nil without a session, and stream without one of Envoy.
func gapOf(tells, fresh bool, agent *adminv1.Agent, state *adminv1.AgentState, stream *adminv1.Stream) string {
	switch {
	case agent != nil:
		return gapOfAgent(tells, fresh, agent, stream)
	case state.GetPhase() == adminv1.AgentState_NEVER_JOINED:
		return "its agent has never joined"
	case state.GetPhase() == adminv1.AgentState_WAITING:
		return "its agent waits to join: " + state.GetRefusal()
	}
	return "its agent is not connected"
}

func gapOfAgent(tells, fresh bool, agent *adminv1.Agent, stream *adminv1.Stream) string {
	has := func(feature string) bool { return slices.Contains(agent.GetFeatures(), feature) }
	switch {
	case !has(agentv1.FeaturePlaintext):
		return fmt.Sprintf("its agent of version %s is too old to count plaintext: restart it with a newer one",
			agent.GetVersion())
	case !tells:
		return "its agent has just connected, and has not reported its counts yet"
	case agent.GetEnvoyDown() != "":
		return "its Envoy does not run: " + agent.GetEnvoyDown()
	case stream == nil:
		return "its Envoy is not connected"
	case !stream.GetRecords():
		return "its Envoy was started when its agent, or the control plane, was too old to record plaintext: restart it"
	case fresh:
		return ""
	case !has(agentv1.FeatureAskPlaintext):
		return fmt.Sprintf("its agent of version %s is too old to be asked, and reports its counts once a minute: traffic since then is unknown", agent.GetVersion())
	}
	return "its agent was asked and has not answered: traffic since its last report is unknown"
}
