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

// Heard takes over other replicas' reports about a proxy.
func (s *State) Heard(id mesh.ID) {
	s.hearIdentity(id)
	s.facts.Heard(id)
	s.refreshPlaintext(id)
}

// Gone removes the reports about a proxy that has left the view.
func (s *State) Gone(id mesh.ID) {
	_ = s.facts.Plaintext.Drop(id) // Drop returns no error, since nothing is stored; the counts move to past
	s.facts.Heard(id)
	s.refreshPlaintext(id)
}

// hearIdentity passes to the authority the proxy's certificates that other replicas report, and which of them the proxy
// uses if its newest session is with another replica.
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
				Bundle: session.GetBundleId(), Epoch: session.GetBundleEpoch(), Serial: c.GetSerial(), CA: c.GetCa(),
				NotAfter: p.NotAfter, ServingCA: session.GetServingCaId(),
			}
		}
		heard = true
		if err := s.o.Authority.Hear(p, use); err != nil {
			s.o.Logger.Debug("failed to take over the certificate of a proxy", "mesh", meshName, "proxy", name,
				"replica", said.Replica, "err", err)
		}
	}
	if heard { // otherwise nothing has changed
		s.ObserveIdentity(id)
	}
}

// Tell adds this replica's own records of a proxy to m, and returns false if it has none.
func (s *State) Tell(id mesh.ID, m *peerv1.Proxy) bool {
	s.mu.Lock()
	m.Certificate = s.issued[id]
	s.mu.Unlock()
	return s.facts.Tell(id, m) || m.GetCertificate() != nil
}

// Told returns the proxies of which this replica has records for other replicas, see Tell.
func (s *State) Told() []mesh.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.AppendSeq(s.facts.Told(), maps.Keys(s.issued))
}

// Session returns the order of the newest session that told this replica whether a proxy drains.
func (s *State) Session(id mesh.ID) (order facts.Order, draining bool) {
	own := s.facts.Own(id)
	return own.Session, own.Draining
}

// Issued records that a proxy has joined here. Other replicas need the record until the proxy has a session.
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

// ForgetIssued forgets that a proxy has joined here, because its session now reports its certificate.
func (s *State) ForgetIssued(id mesh.ID) {
	s.mu.Lock()
	known := s.issued[id] != nil
	delete(s.issued, id)
	s.mu.Unlock()
	if known {
		s.o.Peers.Changed(id)
	}
}

// forgetTold removes records of removed proxies that only other replicas need.
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
