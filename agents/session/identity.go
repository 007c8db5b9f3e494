package session

import (
	"github.com/sonde-mesh/sonde/agents/call"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/identity"
)

// report records the bundle and leaf that the proxy uses, and pushes what is due then.
func (s *Sessions) report(sess *session, inUse *agentv1.InUse) error {
	log := s.o.Logger.With("mesh", sess.peer.Mesh, "proxy", sess.peer.Dataplane)
	err := s.inTurn(sess, func() error {
		if err := s.o.Authority.Report(sess.peer, inUseOf(inUse)); err != nil {
			return call.Internal(sess.stream.Context(), log, "write report", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.o.Observed.ObserveIdentity(sess.peer.ID())
	s.o.Observed.ForgetIssued(sess.peer.ID())
	s.mu.Lock()
	sess.inUse = inUse
	s.mu.Unlock()
	s.o.Peers.Changed(sess.peer.ID())
	s.o.Reported(sess.stream.Context(), sess.peer.Mesh)
	return s.push(sess)
}

// push sends the states that have changed, the bundle if the proxy uses another one, and RenewNow if its leaf is not from the CA that signs or
// not for the workload of the Dataplane. The bundle comes first, since it has to trust the new leaf.
func (s *Sessions) push(sess *session) error {
	if err := s.pushStates(sess); err != nil {
		return err
	}
	if err := s.pushServingCA(sess); err != nil {
		return err
	}
	due, err := s.o.Authority.Due(sess.peer)
	if err != nil {
		return call.Internal(sess.stream.Context(), s.o.Logger, "read bundle", err)
	}
	s.mu.Lock()
	inUse := sess.inUse
	s.mu.Unlock()
	if p := (push{due.Bundle.ID, inUse.GetBundleId()}); due.NewBundle && sess.pushedBundle != p {
		sess.pushedBundle = p
		if err := sess.stream.Send(&agentv1.ControlMessage{Message: &agentv1.ControlMessage_Bundle{Bundle: call.Bundle(due.Bundle)}}); err != nil {
			return err
		}
	}
	other, differs := s.o.Observed.CheckWorkload(sess.stream.Context(), sess.peer.ID())
	if p := (push{due.CA + other.Dataplane, inUse.GetLeafSerial()}); (due.NewLeaf || differs) && sess.pushedRenewal != p {
		sess.pushedRenewal = p
		return sess.stream.Send(&agentv1.ControlMessage{Message: &agentv1.ControlMessage_RenewNow{RenewNow: &agentv1.RenewNow{}}})
	}
	return nil
}

func inUseOf(m *agentv1.InUse) identity.InUse {
	use := identity.InUse{Bundle: m.GetBundleId(), Epoch: m.GetBundleEpoch(), Serial: m.GetLeafSerial(), ServingCA: m.GetServingCaId()}
	if at := m.GetLeafNotAfter(); at.IsValid() && m.GetLeafCa() != "" {
		use.CA, use.NotAfter = m.GetLeafCa(), at.AsTime()
	}
	return use
}
