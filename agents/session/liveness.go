package session

import (
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/agents/call"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// Restarts decides which failures of guarded liveness probes the kubelet gets.
type Restarts interface {
	// Of returns the current decisions for a proxy's agent, nil while they are unknown: then the last ones stay in effect.
	// The caller must not change the result.
	Of(id mesh.ID) *agentv1.Restarts
	// Held is called when a proxy's held containers have changed, whichever replica has its session. It must return at
	// once, and must not call the server.
	Held(id mesh.ID)
}

// restarts returns the decisions about restarts for the agent of a proxy, nil while they are unknown.
func (s *Sessions) restarts(id mesh.ID) *agentv1.ControlMessage {
	if s.o.Restarts == nil {
		return nil
	}
	now := s.o.Restarts.Of(id)
	if now == nil {
		return nil
	}
	return &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Restarts{Restarts: now}}
}

// livenessChanged records which guarded liveness probes of a pod fail, at most once per livenessEvery. Agents outside
// pods have no such probes.
func (s *Sessions) livenessChanged(sess *session, m *agentv1.Liveness) error {
	if s.o.Restarts == nil || sess.peer.Instance == "" {
		s.metrics.unknown.Inc()
		return nil
	}
	if err := checkLiveness(m); err != nil {
		return err
	}
	if reported := (agentv1.ReportedLiveness{Report: m, At: s.o.Now()}); sess.liveness.add(reported, livenessEvery) {
		return s.takeLiveness(sess, reported)
	}
	return nil
}

// livenessEvery is the minimum time between two liveness reports of an agent: agents keep to it, and the leader must
// not do more work for an agent that does not.
const livenessEvery = time.Second

// takeNewestLiveness processes the waiting report, if there is one. inTurn drops it if a newer session has replaced
// this one.
func (s *Sessions) takeNewestLiveness(sess *session) {
	if reported, waits := sess.liveness.take(); waits {
		_ = s.takeLiveness(sess, reported)
	}
}

func (s *Sessions) takeLiveness(sess *session, reported agentv1.ReportedLiveness) error {
	return s.inTurn(sess, func() error {
		s.o.Observed.Liveness(sess.stream.Context(), sess.peer.Subject, sess.order, reported)
		return nil
	})
}

// checkLiveness validates a message. The error is a gRPC status. Reasons are cut instead of checked.
func checkLiveness(m *agentv1.Liveness) error {
	if n := max(len(m.GetHeld()), len(m.GetPassing()), len(m.GetUnused())); n > agentv1.MaxReported {
		return status.Errorf(codes.InvalidArgument, "liveness: %d containers, must be at most %d", n, agentv1.MaxReported)
	}
	for _, name := range m.GetPassing() {
		if !agentv1.IsContainerName(name) {
			return status.Errorf(codes.InvalidArgument, "liveness: passing: %q: must be the name of a container",
				call.Shorten(name))
		}
	}
	for _, name := range m.GetUnused() {
		if len(name) > maxGrant {
			return status.Errorf(codes.InvalidArgument, "liveness: unused: must have at most %d characters", maxGrant)
		}
	}
	for i, h := range m.GetHeld() {
		name := h.GetContainer()
		if !agentv1.IsContainerName(name) {
			return status.Errorf(codes.InvalidArgument, "liveness: container: %q: must be the name of a container",
				call.Shorten(name))
		}
		if slices.ContainsFunc(m.GetHeld()[:i], func(other *agentv1.HeldLiveness) bool {
			return other.GetContainer() == name
		}) {
			return status.Errorf(codes.InvalidArgument, "liveness: container: %q: must occur only once", name)
		}
		if f := h.GetFailing(); f != nil && (!f.IsValid() || f.AsDuration() < 0) {
			return status.Errorf(codes.InvalidArgument, "liveness: failing of %q: must be a duration of at least 0s", name)
		}
		if len(h.GetGrant()) > maxGrant {
			return status.Errorf(codes.InvalidArgument, "liveness: grant of %q: must be at most %d characters", name, maxGrant)
		}
	}
	return nil
}
