package held

import (
	"testing"
	"testing/synctest"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// An agent that resumes after a dead one does not use a used-up grant for a second restart, but uses a grant that is
// not used up.
func TestUsedGrantIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t)
		p.Told(granted("a", 1))
		p.fails("--FF")
		next := newPod(t)
		next.Told(p.kept[len(p.kept)-1])
		next.fails("--FFFFF-") // its count starts again
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

// A grant whose failures were passed on before the check passed may have restarted the container, since the kubelet
// also counts an end of the sidecar as a failure. The next agent, which may not reach the control plane, must not use
// it for a second restart.
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

// A grant that is missing from the control plane's last message is over, for example because it took too long.
func TestGrantThatIsOverIsNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t)
		p.Passed(app)
		p.fails("-")
		p.Told(granted("a", 1))
		p.fails("F")
		p.Connected(false) // the last message stays in effect
		p.fails("F")
		p.Told(&agentv1.Restarts{})
		p.fails("-")
		p.reports("app -a")
		p.Told(granted("b", 1))
		p.fails("FFFFF-")
	})
}
