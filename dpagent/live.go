package dpagent

import (
	"time"

	"github.com/sonde-mesh/sonde/health/heartbeat"
)

// loopLimit bounds one iteration of a loop that only does local work, or sends Envoy a few requests of some seconds
// each.
const loopLimit = 30 * time.Second

// renewLimit is longer than the control plane may take to answer a renewal and then a join: the agent must not restart
// because the control plane is unreachable.
const renewLimit = 2 * time.Minute

// loops are the agent's monitored loops.
type loops struct{ token, session, renewer, redirection, perPort, serviceProbes *heartbeat.Loop }

func (a *Agent) newLoops() loops {
	return loops{
		token: a.checks.Loop("token", loopLimit), session: a.checks.Loop("session", loopLimit),
		renewer:     a.checks.Loop("renewer", renewLimit),
		redirection: a.checks.Loop("redirection", loopLimit), perPort: a.checks.Loop("per-port-probes", loopLimit),
		serviceProbes: a.checks.Loop("service-probes", loopLimit),
	}
}

// limits are limits on Envoy's response times; 0 means the default of the package that uses the limit.
type limits struct{ hang, apply time.Duration }
