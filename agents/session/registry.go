package session

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/skew"
)

var errStopping = status.Error(codes.Unavailable, "the control plane is stopping: try again")

// beginSession counts the handler of a session. It returns false if the server has stopped.
func (s *Sessions) beginSession() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return false
	}
	s.running.Add(1)
	return true
}

// openSession makes the session the current one of its proxy, and ends the previous one. It returns whether the agent
// only moved its connection.
func (s *Sessions) openSession(sess *session) (goesOn bool, err error) {
	id := sess.peer.ID()
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.sessions[id]
	switch {
	case old != nil:
		sess.turn = old.turn
		old.replace()
	case len(s.sessions) >= s.o.Limits.Sessions:
		return false, status.Errorf(codes.ResourceExhausted, "%d sessions are open: try again later", len(s.sessions))
	default:
		sess.turn = &sync.Mutex{}
	}
	s.sessions[id] = sess
	moved := s.ended[id].moved
	delete(s.ended, id)
	s.o.Peers.Changed(id)
	s.o.Opened(id, sess.rival.process)
	s.askMoved(sess)
	return moved != "" && moved == sess.rival.process, nil
}

// closeSession forgets the session, unless a newer one has replaced it. The proxy's endpoint stays: an agent without a
// session is not a dead proxy.
func (s *Sessions) closeSession(sess *session) {
	id := sess.peer.ID()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[id] != sess {
		return
	}
	delete(s.sessions, id)
	s.ended[id] = s.endOf(sess)
	s.o.Peers.Changed(id)
	if sess.moves() {
		s.keepUnsent(sess)
		return
	}
	s.o.Ended(id, s.ended[id].at)
	s.endQueries(id)
}

// inTurn calls do, for one session of the proxy at a time. It returns errReplaced if the session has been replaced.
func (s *Sessions) inTurn(sess *session, do func() error) error {
	sess.turn.Lock()
	defer sess.turn.Unlock()
	select {
	case <-sess.replaced:
		return errReplaced
	default:
		return do()
	}
}

// Silent reports whether a forced rotation skips the proxy, because it has had no session for silentAfter. It is false
// for all proxies while Frozen.
func (s *Sessions) Silent(id mesh.ID) bool {
	if s.o.Frozen() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connected(id) {
		return false
	}
	last, _ := s.lastEnd(id)
	return s.o.Now().Sub(last) >= s.o.Limits.SilentAfter
}

// Connected reports whether the proxy's agent has a session, with any replica.
func (s *Sessions) Connected(id mesh.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connected(id)
}

// connected is Connected for callers that hold mu.
func (s *Sessions) connected(id mesh.ID) bool {
	if s.sessions[id] != nil {
		return true
	}
	_, open := s.elsewhere(id)
	return open
}

// WakeMesh makes the sessions of a mesh send pending messages.
func (s *Sessions) WakeMesh(meshName string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sess := range s.sessions {
		if sess.peer.Mesh == meshName {
			sess.wake.Set()
		}
	}
}

// WakeAll makes all sessions send pending messages.
func (s *Sessions) WakeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sess := range s.sessions {
		sess.wake.Set()
	}
}

// Wake makes the session of a proxy, if it has one, send pending messages.
func (s *Sessions) Wake(id mesh.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sess := s.sessions[id]; sess != nil {
		sess.wake.Set()
	}
}

// ForgetEnded forgets ends of sessions that are older than silentAfter. It keeps the ends for proxies with a Dataplane,
// since Ended reports since when they are lost.
func (s *Sessions) ForgetEnded() {
	v := s.o.View()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, e := range s.ended {
		if _, p := v.Proxy(id); p == nil && s.o.Now().Sub(e.at) >= s.o.Limits.SilentAfter {
			delete(s.ended, id)
			s.o.Peers.Changed(id)
		}
	}
}

// Agents returns the agents that have a session, with any replica.
func (s *Sessions) Agents() map[mesh.ID]*adminv1.Agent {
	all := s.agentsElsewhere()
	var peers []identity.Peer
	s.mu.Lock()
	for id, sess := range s.sessions {
		peers = append(peers, sess.peer)
		all[id] = &adminv1.Agent{
			Version:        sess.version.GetSonde(),
			EnvoyVersion:   sess.version.GetEnvoy(),
			Features:       sess.features,
			ConnectedSince: timestamppb.New(sess.since),
			BundleId:       sess.inUse.GetBundleId(),
			LeafSerial:     sess.inUse.GetLeafSerial(),
			EnvoyDown:      sess.envoyDown,
			Refused:        sentences(sess.refusals),
			Replica:        s.o.Replica,
		}
	}
	s.mu.Unlock()
	for _, a := range all {
		a.VersionSkew = skew.Problem(a.GetVersion(), s.o.Version)
	}
	// The caller must not hold mu, since the authority may read its storage.
	for _, p := range peers {
		if due, err := s.o.Authority.Due(p); err == nil && !due.LeafExpires.IsZero() {
			all[p.ID()].CertificateExpires = timestamppb.New(due.LeafExpires)
		}
	}
	return all
}

// Without calls do if the proxy has no session, and prevents a new session meanwhile.
func (s *Sessions) Without(id mesh.ID, do func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connected(id) {
		return nil
	}
	return do()
}

// Since returns since when each connected agent has had its session.
func (s *Sessions) Since() map[mesh.ID]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	since := s.sinceElsewhere()
	for id, sess := range s.sessions {
		since[id] = sess.since
	}
	return since
}

// Ended returns the end of a disconnected proxy's last session, and whether this process had that session: if not, at
// is the start of this process. The agent may still reconnect within Limits.SilentAfter.
func (s *Sessions) Ended(id mesh.ID) (at time.Time, seen, mayComeBack bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, seen = s.lastEnd(id)
	return at, seen, s.o.Now().Sub(at) < s.o.Limits.SilentAfter
}

// lastEnd returns the end of a proxy's last session with any replica, or the start of this process if that is unknown.
// The caller holds mu.
func (s *Sessions) lastEnd(id mesh.ID) (at time.Time, seen bool) {
	last := s.started
	if e, known := s.ended[id]; known {
		last, seen = e.at, true
	}
	for _, said := range s.said(id) {
		if end := saidEnd(said); !end.IsZero() {
			seen = true
			if end.After(last) {
				last = end
			}
		}
	}
	return last, seen
}
