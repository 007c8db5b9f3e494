package session

import (
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// agentState is a state that a session sends when it begins, and when the state changes. It stays in effect until the
// next one.
type agentState struct {
	feature string // with which a control plane announces the state
	both    bool   // only agents that have the feature, too, get the state
	// message returns the state, nil while it is unknown: then the last one stays in effect.
	message func(*Sessions, mesh.ID) *agentv1.ControlMessage
}

// agentStates are sent in this order.
var agentStates = []agentState{
	{feature: agentv1.FeatureInbounds, message: (*Sessions).inbounds},
	{feature: agentv1.FeaturePerPortProbes, message: (*Sessions).perPortProbes},
	{feature: agentv1.FeatureServiceProbes, both: true, message: (*Sessions).serviceProbes},
	{feature: agentv1.FeatureDrainState, message: (*Sessions).drainState},
	{feature: agentv1.FeatureEndpoints, both: true, message: (*Sessions).endpoints},
	{feature: agentv1.FeatureOutbounds, both: true, message: (*Sessions).outbounds},
	{feature: agentv1.FeatureRestartGrants, both: true, message: (*Sessions).restarts},
}

// pushStates sends the states that have changed since they were last sent.
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

// leaveToOldAgent warns once per session about the features that its agent is too old for.
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
