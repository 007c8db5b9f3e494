package dpagent

import (
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/dpagent/session"
)

// reports returns all that the agent reports in a session, beside which certificate and versions are in use.
func (a *Agent) reports() []session.Report {
	reports := []session.Report{
		a.failures.Report(), a.readiness.Report(), a.envoyState.Report(), session.PlaintextReport(a.plaintext),
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
			a.readiness.All() // the control plane may have forgotten what it was told
		},
		Drain: a.setDrain, Query: a.query, Reports: a.reports(), Plaintext: a.plaintext.Report, Version: a.version.Load,
		Instance: a.instance, Started: a.started, Duplicate: a.duplicates.add, Refused: a.duplicates.setRefused,
		Logger: a.logger, Registerer: a.metrics,
	}
	if a.liveness != nil {
		o.Restarts, o.Connected = a.liveness.Told, a.liveness.Connected
	}
	return session.New(o)
}
