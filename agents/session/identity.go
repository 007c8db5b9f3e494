package session

import (
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/agents/call"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/replicas"
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
	p := push{due.CA + other.Dataplane, inUse.GetLeafSerial()}
	needed := differs || due.NewLeaf && s.allSign(sess.peer.Mesh, due.CA)
	if !needed || sess.pushedRenewal == p || !sess.mayAskAgain(p.what) {
		return nil
	}
	sess.pushedRenewal = p
	return sess.stream.Send(&agentv1.ControlMessage{Message: &agentv1.ControlMessage_RenewNow{RenewNow: &agentv1.RenewNow{}}})
}

// allSign reports whether the CA signs with all replicas that are heard: a leaf from one that has not loaded it would have to be renewed again.
func (s *Sessions) allSign(meshName, ca string) bool {
	return !slices.ContainsFunc(s.o.Peers.Loaded(), func(l replicas.Loaded) bool {
		return slices.ContainsFunc(l.State.GetAuthorities(), func(a *peerv1.Authority) bool {
			return l.Lost.IsZero() && a.GetMesh() == meshName && a.GetSigningCa() != ca
		})
	})
}

// renewPause is how soon an agent is asked again to renew for the same reason: a replica that has not heard of it issues what was there before.
const renewPause = 5 * time.Second

// mayAskAgain reports whether an agent may be asked to renew for that reason now. If not, the session is woken when it may.
func (sess *session) mayAskAgain(reason string) bool {
	now := time.Now()
	if wait := sess.renewAsked.Add(renewPause).Sub(now); reason == sess.pushedRenewal.what && wait > 0 {
		time.AfterFunc(wait, sess.wake.Set)
		return false
	}
	sess.renewAsked = now
	return true
}

func inUseOf(m *agentv1.InUse) identity.InUse {
	use := identity.InUse{Bundle: m.GetBundleId(), Epoch: m.GetBundleEpoch(), Serial: m.GetLeafSerial(), ServingCA: m.GetServingCaId()}
	if at := m.GetLeafNotAfter(); at.IsValid() && m.GetLeafCa() != "" {
		use.CA, use.NotAfter = m.GetLeafCa(), at.AsTime()
	}
	return use
}
