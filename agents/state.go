package agents

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sonde-mesh/sonde/agents/join"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// States returns the state of the agent of each proxy that has a Dataplane or a session, or waits to join.
func (s *Server) States() map[mesh.ID]*adminv1.AgentState {
	waiting := s.waiting()
	all := map[mesh.ID]*adminv1.AgentState{}
	if v := s.o.View(); v != nil {
		for meshName, m := range v.Meshes {
			for name := range m.Proxies.All() {
				id := mesh.MakeID(meshName, name)
				all[id] = s.stateWithout(id)
			}
		}
	}
	for id, w := range waiting {
		all[id] = newState(adminv1.AgentState_WAITING, w.Since)
	}
	for id, since := range s.sessions.Since() {
		all[id] = newState(adminv1.AgentState_CONNECTED, since)
	}
	for id, w := range waiting {
		all[id].Refusal = w.Reason
	}
	return all
}

// waiting returns the proxies that wait to join at any connected replica.
func (s *Server) waiting() map[mesh.ID]join.Wait {
	all := s.joins.Waiting()
	for id := range s.o.Peers.HeardProxies() {
		for _, said := range s.o.Peers.Heard(id) {
			w := said.Proxy.GetWaiting()
			if w == nil || !said.Lost.IsZero() {
				continue
			}
			if here, waits := all[id]; !waits || w.GetSince().AsTime().Before(here.Since) {
				all[id] = join.Wait{Since: w.GetSince().AsTime(), Reason: w.GetReason()}
			}
		}
	}
	return all
}

// stateWithout returns the state of an agent that has no session and does not wait.
func (s *Server) stateWithout(id mesh.ID) *adminv1.AgentState {
	o := s.observed.Of(id)
	ended, seen, mayComeBack := s.sessions.Ended(id)
	switch {
	case !o.Joined && (!mayComeBack || s.observed.Kept()): // without storage, it may have joined before the start
		return &adminv1.AgentState{Phase: adminv1.AgentState_NEVER_JOINED}
	case mayComeBack && (!seen || !o.Draining): // a draining agent has probably exited
		return newState(adminv1.AgentState_RECONNECTING, ended)
	case o.Draining:
		return newState(adminv1.AgentState_STOPPED, ended)
	}
	return newState(adminv1.AgentState_LOST, ended)
}

func newState(phase adminv1.AgentState_Phase, since time.Time) *adminv1.AgentState {
	return &adminv1.AgentState{Phase: phase, Since: timestamppb.New(since)}
}

// count returns how many of the states are in a phase, by mesh.
func (s *Server) count(states map[mesh.ID]*adminv1.AgentState, phase adminv1.AgentState_Phase) map[string]int {
	count := map[string]int{}
	if v := s.o.View(); v != nil {
		for meshName := range v.Meshes {
			count[meshName] = 0
		}
	}
	for id, state := range states {
		if state.GetPhase() == phase {
			meshName, _ := mesh.SplitID(id)
			count[meshName]++
		}
	}
	return count
}
