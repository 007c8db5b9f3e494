package session

import (
	"errors"
	"slices"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/dpagent/identity"
)

// features returns the features of this agent.
func (s *Session) features() []string {
	all := slices.Clone(features)
	if s.o.ServingCA != nil {
		all = append(all, agentv1.FeatureServingCA)
	}
	if s.o.Restarts != nil {
		all = append(all, agentv1.FeatureRestartGrants, agentv1.FeatureLivenessHold)
	}
	if s.o.Plaintext != nil {
		all = append(all, agentv1.FeaturePlaintext, agentv1.FeatureAskPlaintext)
	}
	return all
}

// inUse returns the bundle and certificates that the proxy has installed.
func (s *Session) inUse() *agentv1.InUse {
	use := s.o.Identity.InUse()
	if s.o.ServingCA != nil {
		use.ServingCaId, use.ServingCaEpoch = s.o.ServingCA.InUse()
	}
	return use
}

// takeServingCA installs the control plane's CAs. After an error the next session sends them again.
func (s *Session) takeServingCA(b *agentv1.Bundle) {
	if s.o.ServingCA == nil {
		s.unknown.Inc()
		return
	}
	err := s.o.ServingCA.Take(b)
	if errors.Is(err, identity.ErrOlderBundle) {
		s.o.Logger.Warn("ignoring CAs of a control plane replica that has missed the last change", "err", err)
		return
	}
	if err != nil {
		s.o.Logger.Error("failed to install the control plane's CAs, keeping the previous ones", "err", err)
		return
	}
	s.o.Logger.Info("installed the control plane's CAs", "ca", b.GetId(), "epoch", b.GetEpoch())
	s.Changed()
}
