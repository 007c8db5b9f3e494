package session

import (
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// agentState is a state that an agent is sent when its session begins, and when it differs from what it was sent. It holds until the next one.
type agentState struct {
	feature string // of the control planes that send it
	both    bool   // only agents with that feature are sent it
	// message returns the state, nil while it is not known: what the agent was told then holds.
	message func(*Sessions, mesh.ID) *agentv1.ControlMessage
}

// agentStates are those of all agents, in the order in which they are sent.
var agentStates = []agentState{
	{feature: agentv1.FeatureInbounds, message: (*Sessions).inbounds},
	{feature: agentv1.FeaturePerPortProbes, message: (*Sessions).perPortProbes},
	{feature: agentv1.FeatureServiceProbes, both: true, message: (*Sessions).serviceProbes},
	{feature: agentv1.FeatureDrainState, message: (*Sessions).drainState},
	{feature: agentv1.FeatureEndpoints, both: true, message: (*Sessions).endpoints},
	{feature: agentv1.FeatureOutbounds, both: true, message: (*Sessions).outbounds},
	{feature: agentv1.FeatureRestartGrants, both: true, message: (*Sessions).restarts},
}

// pushStates sends the states that differ from what the agent was sent.
func (s *Sessions) pushStates(sess *session) error {
	if err := s.leaveToOldAgent(sess); err != nil {
		return err
	}
	if s.takeAskAgain(sess) {
		delete(sess.pushed, agentv1.FeatureServiceProbes)
	}
	for _, state := range agentStates {
		if state.both && !sess.has(state.feature) {
			continue
		}
		now := state.message(s, sess.peer.ID())
		if now == nil || proto.Equal(now, sess.pushed[state.feature]) {
			continue
		}
		sess.pushed[state.feature] = now
		if err := sess.stream.Send(now); err != nil {
			return err
		}
	}
	s.followListeners(sess)
	return nil
}

// leaveToOldAgent says once in a session what its agent is too old for, and forgets what is known of the applications of one that does not
// report them: it would never report, so that health.ready alone decides.
func (s *Sessions) leaveToOldAgent(sess *session) error {
	id, ctx := sess.peer.ID(), sess.stream.Context()
	_, p := s.o.View().Proxy(id)
	if p == nil || p.Dataplane.IsPod() {
		return nil
	}
	log := s.o.Logger.With("mesh", sess.peer.Mesh, "proxy", sess.peer.Dataplane, "version", sess.version.GetSonde())
	if p.Dataplane.ProbesMode == mesh.ProbesPerPort && !sess.has(agentv1.FeatureProbePorts) && !sess.toldProbes {
		sess.toldProbes = true
		log.WarnContext(ctx, "agent is too old for per-port probes: they are not answered until it is upgraded")
	}
	if sess.has(agentv1.FeatureServiceProbes) {
		return nil
	}
	if len(serviceProbesOf(p.Dataplane).GetProbes()) > 0 && !sess.toldOld {
		sess.toldOld = true
		log.WarnContext(ctx, "agent is too old for serviceProbe: health.ready alone decides about the inbounds until it is upgraded")
	}
	return s.inTurn(sess, func() error {
		s.o.Observed.IgnoreApplications(ctx, id, sess.order)
		return nil
	})
}
