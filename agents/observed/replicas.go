package observed

import (
	"maps"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/cut"
	"github.com/sonde-mesh/sonde/peers"
)

// Said returns what other replicas have said of a proxy: of the instance that the view has, if it has one.
func (s *State) Said(id mesh.ID) []peers.Said {
	all := s.o.Peers.Heard(id)
	d := s.o.View().Dataplane(id)
	if d == nil {
		return all
	}
	return slices.DeleteFunc(all, func(said peers.Said) bool { return said.Proxy.GetInstance() != d.Identity.Instance })
}

// merge adds to what this replica knows what others have said that is newer: each part is that of who knows the newest.
func (s *State) merge(id mesh.ID, own facts) mesh.Observation {
	for _, said := range s.Said(id) {
		m := said.Proxy
		if order := OrderOf(m.GetSession().GetOrder()); m.GetSession() != nil && order.Compare(own.session) > 0 {
			own.session, own.Draining = order, m.GetSession().GetDraining()
		}
		if order := OrderOf(m.GetApplications().GetOrder()); m.GetApplications() != nil && (!own.applications || order.Compare(own.reported) > 0) {
			own.applications, own.reported, own.NotServing = true, order, mesh.MakeAddresses(slices.Collect(maps.Keys(reasonsOf(m.GetApplications().GetNotServing()))))
		}
		if order := OrderOf(m.GetLiveness().GetOrder()); m.GetLiveness() != nil && (!own.liveness || order.Compare(own.heldBy) > 0) {
			own.liveness, own.heldBy, own.Held = true, order, anyHeld(livenessOf(m.GetLiveness().GetSaid(), said.At).Failing)
		}
		if order := OrderOf(m.GetListeners().GetOrder()); m.GetListeners() != nil && (!own.ListenersKnown || order.Compare(own.stream) > 0) {
			own.ListenersKnown, own.stream, own.Listeners = true, order, mesh.MakeAddresses(addressesOf(m.GetListeners().GetAccepted()))
		}
	}
	return own.Observation
}

// reasonsOf returns texts by address. The addresses were checked when the message came.
func reasonsOf(m map[string]string) map[netip.AddrPort]string {
	all := make(map[netip.AddrPort]string, len(m))
	for text, reason := range m {
		if at, err := netip.ParseAddrPort(text); err == nil {
			all[at] = reason
		}
	}
	return all
}

func addressesOf(texts []string) []netip.AddrPort {
	var all []netip.AddrPort
	for _, text := range texts {
		if at, err := netip.ParseAddrPort(text); err == nil {
			all = append(all, at)
		}
	}
	return all
}

// newestApplications returns what all replicas know of the applications of a proxy, of which this one knows newest.
func (s *State) newestApplications(id mesh.ID, newest report) report {
	for _, said := range s.Said(id) {
		m := said.Proxy.GetApplications()
		if order := OrderOf(m.GetOrder()); m != nil && (!newest.known || order.Compare(newest.order) > 0) {
			newest = report{known: true, order: order, reasons: reasonsOf(m.GetNotServing())}
		}
	}
	return newest
}

// Heard takes over what other replicas have said of a proxy.
func (s *State) Heard(id mesh.ID) {
	s.hearIdentity(id)
	s.observed.heard(id)
	s.refreshHeld(id)
	s.refreshPlaintext(id)
}

// hearIdentity tells the authority which certificates a proxy has by what others say, and what it uses if its newest session is elsewhere.
func (s *State) hearIdentity(id mesh.ID) {
	meshName, name := mesh.SplitID(id)
	newest, heard := s.observed.factsOf(id).session, false
	for _, said := range s.Said(id) {
		c, session := said.Proxy.GetCertificate(), said.Proxy.GetSession()
		if c.GetSerial() == "" {
			continue
		}
		p := identity.Peer{
			Subject: identity.Subject{Mesh: meshName, Dataplane: name, Instance: said.Proxy.GetInstance(), Path: c.GetPath()},
			Serial:  c.GetSerial(), CA: c.GetCa(), NotAfter: c.GetNotAfter().AsTime(),
		}
		var use *identity.InUse
		if order := OrderOf(session.GetOrder()); session.GetBundleId() != "" && order.Compare(newest) > 0 {
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
	own := s.observed.factsOf(id)
	if own.applications {
		m.Applications = &peerv1.Applications{Order: own.reported.Proto(), NotServing: texts(s.applications.own(id).reasons)}
	}
	if own.ListenersKnown {
		s.mu.Lock()
		m.Listeners = &peerv1.Listeners{Order: own.stream.Proto(), Refused: texts(s.refused[id])}
		s.mu.Unlock()
		m.Listeners.Accepted = own.Listeners.Texts()
	}
	s.mu.Lock()
	m.Certificate = s.issued[id]
	s.mu.Unlock()
	m.Liveness, m.Plaintext = s.tellHeld(id), s.tellPlaintext(id)
	return m.GetApplications() != nil || m.GetListeners() != nil || m.GetLiveness() != nil || m.GetPlaintext() != nil || m.GetCertificate() != nil
}

func texts(reasons map[netip.AddrPort]string) map[string]string {
	all := make(map[string]string, len(reasons))
	for at, reason := range reasons {
		all[at.String()] = cut.Text(reason, agentv1.MaxReason)
	}
	return all
}

// Told returns the proxies for which Tell has something.
func (s *State) Told() []mesh.ID {
	ids := s.observed.which(func(f facts) bool { return f.applications || f.ListenersKnown || f.liveness })
	ids = append(ids, s.toldPlaintext()...)
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.issued {
		ids = append(ids, id)
	}
	return ids
}

// Session returns the order of the newest session by which this replica knows whether a proxy drains.
func (s *State) Session(id mesh.ID) (order Order, draining bool) {
	own := s.observed.factsOf(id)
	return own.session, own.Draining
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
	for _, id := range s.observed.which(func(f facts) bool { return f.session != Order{} }) {
		if gone(id) {
			s.observed.update(id, func(f *facts) { f.session = Order{} })
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
