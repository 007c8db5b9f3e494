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

// report records the bundle and leaf that the proxy uses, and pushes messages that this makes necessary.
func (s *Sessions) report(sess *session, inUse *agentv1.InUse) error {
	log := s.o.Logger.With("mesh", sess.peer.Mesh, "proxy", sess.peer.Dataplane)
	err := s.inTurn(sess, func() error {
		if err := s.o.Authority.Report(sess.peer, inUseOf(inUse)); err != nil {
			return call.Internal(sess.stream.Context(), log, "write the report", err)
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

// push sends changed states, a bundle that the proxy does not use yet, and RenewNow for a leaf of another CA than the
// signing one or of another workload than the Dataplane's. The bundle comes first, since it has to trust the new leaf.
func (s *Sessions) push(sess *session) error {
	if err := s.pushStates(sess); err != nil {
		return err
	}
	if err := s.pushServingCA(sess); err != nil {
		return err
	}
	due, err := s.o.Authority.Due(sess.peer)
	if err != nil {
		return call.Internal(sess.stream.Context(), s.o.Logger, "read the bundle", err)
	}
	s.mu.Lock()
	inUse := sess.inUse
	s.mu.Unlock()
	if p := (push{due.Bundle.ID, inUse.GetBundleId()}); due.NewBundle && sess.pushedBundle != p {
		sess.pushedBundle = p
		if err := sess.stream.Send(
			&agentv1.ControlMessage{Message: &agentv1.ControlMessage_Bundle{Bundle: call.Bundle(due.Bundle)}}); err != nil {
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
	return sess.stream.Send(
		&agentv1.ControlMessage{Message: &agentv1.ControlMessage_RenewNow{RenewNow: &agentv1.RenewNow{}}})
}

// allSign reports whether all connected replicas sign with this CA: a leaf from a replica that has not loaded the CA
// would have to be renewed again.
func (s *Sessions) allSign(meshName, ca string) bool {
	return !slices.ContainsFunc(s.o.Peers.Loaded(), func(l replicas.Loaded) bool {
		return slices.ContainsFunc(l.State.GetAuthorities(), func(a *peerv1.Authority) bool {
			return l.Lost.IsZero() && a.GetMesh() == meshName && a.GetSigningCa() != ca
		})
	})
}

// renewPause is the minimum time between two RenewNow for the same reason: a replica that has not received the change
// issues an outdated leaf.
const renewPause = 5 * time.Second

// mayAskAgain reports whether the session may send RenewNow for that reason again. If not, a timer wakes the session
// later.
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
	use := identity.InUse{Bundle: m.GetBundleId(), Epoch: m.GetBundleEpoch(), Serial: m.GetLeafSerial(),
		ServingCA: m.GetServingCaId()}
	if at := m.GetLeafNotAfter(); at.IsValid() && m.GetLeafCa() != "" {
		use.CA, use.NotAfter = m.GetLeafCa(), at.AsTime()
	}
	return use
}
