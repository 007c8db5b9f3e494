package session

import (
	"errors"
	"slices"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/dpagent/identity"
)

// features returns those of this agent.
func (s *Session) features() []string {
	all := slices.Clone(features)
	if s.o.ServingCA != nil {
		all = append(all, agentv1.FeatureServingCA)
	}
	if s.o.Restarts != nil {
		all = append(all, agentv1.FeatureRestartGrants)
	}
	if s.o.Plaintext != nil {
		all = append(all, agentv1.FeaturePlaintext, agentv1.FeatureAskPlaintext)
	}
	return all
}

// inUse returns what the proxy has put in place.
func (s *Session) inUse() *agentv1.InUse {
	use := s.o.Identity.InUse()
	if s.o.ServingCA != nil {
		use.ServingCaId, use.ServingCaEpoch = s.o.ServingCA.InUse()
	}
	return use
}

// takeServingCA takes the CAs of the control plane. After an error the next session brings them again.
func (s *Session) takeServingCA(b *agentv1.Bundle) {
	if s.o.ServingCA == nil {
		s.unknown.Inc()
		return
	}
	err := s.o.ServingCA.Take(b)
	if errors.Is(err, identity.ErrOlderBundle) {
		s.o.Logger.Warn("CAs of a control plane that has not heard of the last change not used", "err", err)
		return
	}
	if err != nil {
		s.o.Logger.Error("CAs of the control plane not taken, those before stay in use", "err", err)
		return
	}
	s.o.Logger.Info("CAs of the control plane taken", "ca", b.GetId(), "epoch", b.GetEpoch())
	s.Changed()
}
