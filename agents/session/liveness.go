package session

import (
	"regexp"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/agents/call"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// containerName is what Kubernetes allows.
var containerName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// Restarts decides what the kubelet is told of guarded liveness probes that fail.
type Restarts interface {
	// Of returns what the agent of a proxy is to be told now, nil if that is nothing yet: what it was told then holds. The result must not be
	// changed.
	Of(id mesh.ID) *agentv1.Restarts
	// Held is called when what is held of a proxy has changed, whichever replica has its session. It returns at once, and must not call the server.
	Held(id mesh.ID)
}

// restarts returns what the agent of a proxy should know of restarts, nil while that is nothing.
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

// livenessChanged records which guarded liveness probes of a pod fail, soon if that was said less than livenessEvery ago. Agents of other proxies have none
// to report.
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

// livenessEvery is how often what an agent says of its liveness probes is taken: agents send it at most as often, and the leader must not have more to
// decide for one that sends more.
const livenessEvery = time.Second

// takeNewestLiveness takes what waits, if anything does, and a newer session has not had its say: that has ended this one then.
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

// checkLiveness returns what is wrong with a message, as a gRPC status. Reasons are cut, not checked.
func checkLiveness(m *agentv1.Liveness) error {
	if n := max(len(m.GetHeld()), len(m.GetPassing()), len(m.GetUnused())); n > agentv1.MaxReported {
		return status.Errorf(codes.InvalidArgument, "liveness: %d containers, must be at most %d", n, agentv1.MaxReported)
	}
	for _, name := range m.GetPassing() {
		if !containerName.MatchString(name) {
			return status.Errorf(codes.InvalidArgument, "liveness: passing: %q: must be the name of a container", call.Shorten(name))
		}
	}
	for _, name := range m.GetUnused() {
		if len(name) > maxGrant {
			return status.Errorf(codes.InvalidArgument, "liveness: unused: must have at most %d characters", maxGrant)
		}
	}
	for i, h := range m.GetHeld() {
		name := h.GetContainer()
		if !containerName.MatchString(name) {
			return status.Errorf(codes.InvalidArgument, "liveness: container: %q: must be the name of a container", call.Shorten(name))
		}
		if slices.ContainsFunc(m.GetHeld()[:i], func(other *agentv1.HeldLiveness) bool { return other.GetContainer() == name }) {
			return status.Errorf(codes.InvalidArgument, "liveness: container: %q: is there twice", name)
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
