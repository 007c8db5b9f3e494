package session

import (
	"iter"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sonde-mesh/sonde/agents/call"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/facts"
)

const (
	// lostAfter is how long sessions with a disconnected replica still count: its agents reconnect elsewhere, or the
	// replica still has them.
	lostAfter = time.Minute
	// maxAhead is how far an agent's clock may be ahead.
	maxAhead = time.Minute
)

// endedSession is the last session of a disconnected proxy.
type endedSession struct {
	at       time.Time
	instance string
	last     *peerv1.Session
	// moved is the process of the agent, if it was asked to reconnect because its connection had reached its maximum age.
	// It reconnects at once, perhaps to another replica.
	moved string
}

// endOf returns the endedSession for a session that ends now. The caller holds mu.
func (s *Sessions) endOf(sess *session) endedSession {
	now, last := s.o.Now(), sess.tell()
	last.Open, last.Ended = false, timestamppb.New(now)
	e := endedSession{at: now, instance: sess.peer.Instance, last: last}
	if sess.moves() {
		e.moved = sess.rival.process
	}
	return e
}

// order returns the order of a new session: after all sessions of other processes of the proxy; the agent's count
// orders the sessions of the same process.
func (s *Sessions) order(id mesh.ID, hello *agentv1.Hello, now time.Time) facts.Order {
	order, numbered := facts.OrderAt(now), false
	if n := hello.GetSession(); n.GetStarted().IsValid() && n.GetStarted().GetSeconds() > 0 && n.GetCount() > 0 &&
		n.GetStarted().AsTime().Before(now.Add(maxAhead)) {
		order, numbered = facts.Order{Time: n.GetStarted().AsTime().UnixNano(), Count: n.GetCount()}, true
	}
	own := numbered && hello.GetInstance() != ""
	for _, known := range s.known(id) {
		if of := facts.OrderOf(known.GetOrder()); own && known.GetProcess() == hello.GetInstance() {
			order.Time = max(order.Time, of.Time)
		} else {
			order = order.After(of)
		}
	}
	return order
}

// known returns the sessions of a proxy, open or ended, that this replica knows from its own records or from other
// replicas.
func (s *Sessions) known(id mesh.ID) []*peerv1.Session {
	var all []*peerv1.Session
	s.mu.Lock()
	if sess := s.sessions[id]; sess != nil {
		all = append(all, sess.tell())
	} else if e, ended := s.ended[id]; ended {
		all = append(all, e.last)
	}
	s.mu.Unlock()
	for _, said := range s.said(id) {
		all = append(all, said.Proxy.GetSession())
	}
	return all
}

// said returns the reports of other replicas that have, or have had, a session with the proxy.
func (s *Sessions) said(id mesh.ID) []facts.Said {
	return slices.DeleteFunc(s.o.Observed.Facts().Said(id), func(said facts.Said) bool {
		return said.Proxy.GetSession() == nil
	})
}

// elsewhere returns the report of the replica that has the newest session of a proxy, and whether a session with
// another replica counts as open.
func (s *Sessions) elsewhere(id mesh.ID) (newest facts.Said, open bool) {
	return facts.Session.Newest(slices.DeleteFunc(s.o.Observed.Facts().Said(id), func(said facts.Said) bool {
		return !said.Proxy.GetSession().GetOpen() || !said.Lost.IsZero() && s.o.Now().Sub(said.Lost) >= lostAfter
	}))
}

// Replica returns the name of the replica that has the session of a proxy, "" for this replica or no session.
func (s *Sessions) Replica(id mesh.ID) string {
	s.mu.Lock()
	here := s.sessions[id] != nil
	s.mu.Unlock()
	there, open := s.elsewhere(id)
	if here || !open {
		return ""
	}
	return there.Replica
}

// ProcessElsewhere returns the process with the newest session of a proxy with another replica, "" if the agent does
// not name it.
func (s *Sessions) ProcessElsewhere(id mesh.ID) string {
	there, _ := s.elsewhere(id)
	return there.Proxy.GetSession().GetProcess()
}

// saidEnd returns when the session with another replica ended, zero while it counts as open.
func saidEnd(said facts.Said) time.Time {
	if session := said.Proxy.GetSession(); !session.GetOpen() {
		return session.GetEnded().AsTime()
	}
	return said.Lost
}

// Heard ends the session of a proxy if another replica has a newer one. Otherwise it makes the session send pending
// messages.
func (s *Sessions) Heard(id mesh.ID) {
	there, open := s.elsewhere(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	sess := s.sessions[id]
	if sess == nil {
		if open {
			s.endUnsent(id)
		}
		return
	}
	if open && facts.OrderOf(there.Proxy.GetSession().GetOrder()).Compare(sess.order) > 0 {
		s.metrics.replaced.Inc()
		sess.replace()
		return
	}
	sess.wake.Set()
}

// WakeAwaiting wakes the sessions whose agents wait until other proxies have a change of their endpoints. It is called
// when a replica stops answering, since they do not wait for that replica.
func (s *Sessions) WakeAwaiting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, sess := range s.sessions {
		if s.awaited(id, sess) {
			sess.wake.Set()
		}
	}
}

// awaited reports whether the agent of a session waits for other proxies to have a change of its endpoints.
func (s *Sessions) awaited(id mesh.ID, sess *session) bool {
	d := s.o.View().Dataplane(id)
	return d != nil && !d.IsPod() && sess.has(agentv1.FeatureEndpoints)
}

// Settled reports whether all proxies with a stream to this replica have received its latest state of this proxy.
func (s *Sessions) Settled(id mesh.ID) bool {
	_, p := s.o.View().Proxy(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return p != nil && s.publishing[id] == 0 && s.o.Observed.Of(id) == p.Observed
}

// tell returns the message about the session for other replicas. The caller holds Sessions.mu.
func (sess *session) tell() *peerv1.Session {
	return &peerv1.Session{
		Order: sess.order.Proto(), Open: true, Since: timestamppb.New(sess.since), Process: sess.rival.process,
		Address: call.Address(sess.stream.Context()),
		Version: sess.version.GetSonde(), EnvoyVersion: sess.version.GetEnvoy(), Features: sess.features,
		EnvoyDown: sess.envoyDown, Refusals: sess.refusals,
		BundleId: sess.inUse.GetBundleId(), BundleEpoch: sess.inUse.GetBundleEpoch(), Draining: sess.drained,
		ServingCaId: sess.inUse.GetServingCaId(),
	}
}

// Tell adds this replica's session with a proxy to m, and returns false without one.
func (s *Sessions) Tell(id mesh.ID, m *peerv1.Proxy) bool {
	order, draining := s.o.Observed.Session(id)
	s.mu.Lock()
	sess := s.sessions[id]
	e, ended := s.ended[id]
	switch {
	case sess != nil:
		m.Session, m.Instance, m.Awaited = sess.tell(), sess.peer.Instance, s.awaited(id, sess)
	case ended && (m.GetInstance() == "" || e.instance == m.GetInstance()): // not of an earlier proxy
		m.Session, m.Instance = proto.CloneOf(e.last), e.instance
	default:
		s.mu.Unlock()
		return false
	}
	s.mu.Unlock()
	if facts.OrderOf(m.GetSession().GetOrder()) == order {
		m.Session.Draining = draining // the agent may have changed it since
	}
	if c, known := s.o.Authority.CertificateInUse(id); known {
		m.Certificate = &peerv1.Certificate{Serial: c.Serial, Ca: c.CA, NotAfter: timestamppb.New(c.NotAfter), Path: c.Path}
	}
	return true
}

// Told returns the proxies of which this replica has sessions to report, see Tell.
func (s *Sessions) Told() []mesh.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.AppendSeq(slices.Collect(maps.Keys(s.sessions)), maps.Keys(s.ended))
}

// allElsewhere yields the result of elsewhere for all proxies with a session that counts as open.
func (s *Sessions) allElsewhere() iter.Seq2[mesh.ID, facts.Said] {
	return func(yield func(mesh.ID, facts.Said) bool) {
		for id := range s.o.Peers.HeardProxies() {
			if there, open := s.elsewhere(id); open && !yield(id, there) {
				return
			}
		}
	}
}

func (s *Sessions) agentsElsewhere() map[mesh.ID]*adminv1.Agent {
	all := map[mesh.ID]*adminv1.Agent{}
	for id, there := range s.allElsewhere() {
		session, certificate := there.Proxy.GetSession(), there.Proxy.GetCertificate()
		all[id] = &adminv1.Agent{
			Version: session.GetVersion(), EnvoyVersion: session.GetEnvoyVersion(), Features: session.GetFeatures(),
			ConnectedSince: session.GetSince(),
			BundleId:       session.GetBundleId(), LeafSerial: certificate.GetSerial(),
			CertificateExpires: certificate.GetNotAfter(),
			EnvoyDown:          session.GetEnvoyDown(), Refused: sentences(session.GetRefusals()), Replica: there.Replica,
		}
	}
	return all
}

func (s *Sessions) sinceElsewhere() map[mesh.ID]time.Time {
	all := map[mesh.ID]time.Time{}
	for id, there := range s.allElsewhere() {
		all[id] = there.Proxy.GetSession().GetSince().AsTime()
	}
	return all
}
