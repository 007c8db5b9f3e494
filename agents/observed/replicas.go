package observed

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/facts"
	"github.com/sonde-mesh/sonde/identity"
)

// Heard takes over what other replicas have said of a proxy.
func (s *State) Heard(id mesh.ID) {
	s.hearIdentity(id)
	s.facts.Heard(id)
	s.refreshPlaintext(id)
}

// Gone tells that a proxy is not in the view any more.
func (s *State) Gone(id mesh.ID) {
	_ = s.facts.Plaintext.Drop(id) // it counts as past from now on, and is not stored
	s.facts.Heard(id)
	s.refreshPlaintext(id)
}

// hearIdentity tells the authority which certificates a proxy has by what others say, and what it uses if its newest session is elsewhere.
func (s *State) hearIdentity(id mesh.ID) {
	meshName, name := mesh.SplitID(id)
	newest, heard := s.facts.Own(id).Session, false
	for _, said := range s.facts.Said(id) {
		c, session := said.Proxy.GetCertificate(), said.Proxy.GetSession()
		if c.GetSerial() == "" {
			continue
		}
		p := identity.Peer{
			Subject: identity.Subject{Mesh: meshName, Dataplane: name, Instance: said.Proxy.GetInstance(), Path: c.GetPath()},
			Serial:  c.GetSerial(), CA: c.GetCa(), NotAfter: c.GetNotAfter().AsTime(),
		}
		var use *identity.InUse
		if order := facts.OrderOf(session.GetOrder()); session.GetBundleId() != "" && order.Compare(newest) > 0 {
			newest = order
			use = &identity.InUse{
				Bundle: session.GetBundleId(), Epoch: session.GetBundleEpoch(), Serial: c.GetSerial(), CA: c.GetCa(), NotAfter: p.NotAfter, ServingCA: session.GetServingCaId(),
			}
		}
		heard = true
		if err := s.o.Authority.Hear(p, use); err != nil {
			s.o.Logger.Debug("certificate of a proxy not taken over", "mesh", meshName, "proxy", name, "replica", said.Replica, "err", err)
		}
	}
	if heard { // else nothing is known of it here that was not known before
		s.ObserveIdentity(id)
	}
}

// Tell adds to m what this replica knows of a proxy by itself, and returns false if that is nothing.
func (s *State) Tell(id mesh.ID, m *peerv1.Proxy) bool {
	s.mu.Lock()
	m.Certificate = s.issued[id]
	s.mu.Unlock()
	return s.facts.Tell(id, m) || m.GetCertificate() != nil
}

// Told returns the proxies for which Tell has something.
func (s *State) Told() []mesh.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.AppendSeq(s.facts.Told(), maps.Keys(s.issued))
}

// Session returns the order of the newest session by which this replica knows whether a proxy drains.
func (s *State) Session(id mesh.ID) (order facts.Order, draining bool) {
	own := s.facts.Own(id)
	return own.Session, own.Draining
}

// Issued notes that a proxy has joined here, so that other replicas know it before it has a session with any.
func (s *State) Issued(id mesh.ID) {
	c, known := s.o.Authority.CertificateInUse(id)
	if !known {
		return
	}
	s.mu.Lock()
	s.issued[id] = &peerv1.Certificate{Serial: c.Serial, Ca: c.CA, NotAfter: timestamppb.New(c.NotAfter), Path: c.Path}
	s.mu.Unlock()
	s.o.Peers.Changed(id)
}

// ForgetIssued forgets that a proxy has joined here: it has a session by now, in which it says what it uses.
func (s *State) ForgetIssued(id mesh.ID) {
	s.mu.Lock()
	known := s.issued[id] != nil
	delete(s.issued, id)
	s.mu.Unlock()
	if known {
		s.o.Peers.Changed(id)
	}
}

// forgetTold forgets what is only told other replicas of proxies that are gone.
func (s *State) forgetTold(gone func(mesh.ID) bool) {
	for _, id := range s.facts.Which(func(o facts.Own) bool { return o.Session != facts.Order{} }) {
		if gone(id) {
			s.facts.Update(id, func(o *facts.Own) { o.Session = facts.Order{} })
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.issued {
		if gone(id) {
			delete(s.issued, id)
		}
	}
}
