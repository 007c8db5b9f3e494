package held

import (
	"testing"
	"testing/synctest"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// An agent that goes on where another one has died does not use a grant for a second restart, and uses one again that is not used up.
func TestUsedGrantIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t)
		p.Told(granted("a", 1))
		p.fails("--FF")
		next := newPod(t)
		next.Told(p.kept[len(p.kept)-1])
		next.fails("--FFFFF-") // it counts anew
		last := newPod(t)
		last.Told(next.kept[len(next.kept)-1])
		last.fails("-")
		last.Told(granted("a", 1)) // the control plane has not seen the restart yet
		last.fails("-")
		last.Passed(app)
		last.reports("+app")
		last.Told(granted("b", 1))
		last.reports("+app -b")
		last.fails("-")
		last.Told(granted("c", 1))
		last.fails("F")
	})
}

// A grant of which the kubelet was told before the check passes may have restarted the container: an end of the sidecar before it counts, too. The agent
// after this one, which may not hear of the control plane, must not use it for a second restart.
func TestGrantBeforePassingIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t)
		p.Told(granted("a", 1))
		p.fails("--FFFF")
		p.Passed(app)
		next := newPod(t)
		next.Told(p.kept[len(p.kept)-1])
		next.fails("-----")
	})
}

// A grant that the control plane says no more is over, such as one that has taken too long.
func TestGrantThatIsOverIsNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t)
		p.Passed(app)
		p.fails("-")
		p.Told(granted("a", 1))
		p.fails("F")
		p.Connected(false) // what was said last holds
		p.fails("F")
		p.Told(&agentv1.Restarts{})
		p.fails("-")
		p.reports("app -a")
		p.Told(granted("b", 1))
		p.fails("FFFFF-")
	})
}
