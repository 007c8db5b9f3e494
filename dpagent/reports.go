package dpagent

import (
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/dpagent/session"
)

// reports returns everything that the agent reports in a session, besides the certificate and versions in use.
func (a *Agent) reports() []session.Report {
	reports := []session.Report{
		a.failures.Report(), a.readiness.Report(), a.envoyState.Report(), session.PlaintextReport(a.plaintext),
		session.RefusalsReport(a.refused), session.VerdictsReport(a.verdicts),
	}
	if a.liveness != nil {
		reports = append(reports, session.LivenessReport(a.liveness))
	}
	return reports
}

// newSession returns the session, which is not open yet.
func (a *Agent) newSession(renew func()) *session.Session {
	o := session.Options{
		Opener: a.client, Identity: a.identity, ServingCA: a.sessionServingCA(), Renew: renew, Loop: a.loops.session,
		Inbounds: a.setInbounds, Endpoints: a.setEndpoints, Outbounds: a.setOutbounds, Probes: a.setProbes,
		ServiceProbes: func(m *agentv1.ServiceProbes) {
			a.setServiceProbes(m)
			a.readiness.All() // the control plane may have lost earlier reports
		},
		Drain: a.setDrain, Query: a.query, Reports: a.reports(), Plaintext: a.plaintext.Report, Version: a.version.Load,
		Instance: a.instance, Started: a.started, Duplicate: a.duplicates.add, Refused: a.duplicates.setRefused,
		Logger: a.logger, Registerer: a.metrics,
	}
	if a.probes != nil {
		o.Restarts = a.setRestarts
	}
	if a.liveness != nil {
		o.Connected = a.liveness.Connected
	}
	return session.New(o)
}
