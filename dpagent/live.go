package dpagent

import (
	"time"

	"github.com/sonde-mesh/sonde/health/heartbeat"
)

// loopLimit is how long a turn of a loop may take that does nothing but local work, or asks Envoy a few questions of some seconds each.
const loopLimit = 30 * time.Second

// renewLimit is longer than the control plane may take to answer a renewal and then a join: that it is away is no reason to restart.
const renewLimit = 2 * time.Minute

// loops of the agent that must turn.
type loops struct{ token, session, renewer, redirection, perPort, serviceProbes *heartbeat.Loop }

func (a *Agent) newLoops() loops {
	return loops{
		token: a.checks.Loop("token", loopLimit), session: a.checks.Loop("session", loopLimit), renewer: a.checks.Loop("renewer", renewLimit),
		redirection: a.checks.Loop("redirection", loopLimit), perPort: a.checks.Loop("per-port-probes", loopLimit),
		serviceProbes: a.checks.Loop("service-probes", loopLimit),
	}
}

// limits of what Envoy may take; zero for the defaults of the packages that have them.
type limits struct{ hang, apply time.Duration }
