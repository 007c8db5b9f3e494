package session

import (
	"slices"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// paces are those of a session's reports.
type paces struct{ failures, readiness, liveness, plaintext *pace }

// beginReports reports what a control plane with these features takes. It returns when to report the state of Envoy.
func (s *Session) beginReports(features []string, p paces) (envoy <-chan struct{}) {
	if slices.Contains(features, agentv1.FeatureProbeFailures) {
		p.failures.resume()
	}
	if slices.Contains(features, agentv1.FeatureServiceProbes) {
		s.o.Readiness.all()
		p.readiness.resume()
	}
	if slices.Contains(features, agentv1.FeatureRestartGrants) {
		p.liveness.resume()
	}
	if s.o.Plaintext != nil && slices.Contains(features, agentv1.FeaturePlaintext) {
		s.o.Plaintext.All()
		p.plaintext.resume()
	}
	if !slices.Contains(features, agentv1.FeatureEnvoyState) {
		return nil
	}
	s.o.Envoy.all()
	return s.o.Envoy.wake
}
