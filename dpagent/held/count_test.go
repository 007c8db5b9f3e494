package held

import (
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// An agent that has not seen the kubelet's count start waits for the user's threshold, in each mode that passes
// failures on. Then it passes failures on until the kubelet has restarted the container. The next check is of the new
// container, whose count is known.
func TestThresholdAfterStart(t *testing.T) {
	native := &agentv1.Restarts{Mode: agentv1.Restarts_NATIVE}
	for name, c := range map[string]struct {
		threshold int32
		told      *agentv1.Restarts // nil for a control plane of an earlier release
		want      string
	}{
		"native, 1":          {1, native, "FFFFFFFFFF"},
		"native, 3":          {3, native, "--FFFFFFFFFF"},
		"native, 7":          {7, native, "------FFFFF--FFFFF"},
		"earlier release, 3": {3, nil, "--FFFFFFFFFF"},
		"granted, 1":         {1, granted("a", 1), "FFFFF---"},
		"granted, 3":         {3, granted("a", 1), "--FFFFF---"},
		"granted, 7":         {7, granted("a", 1), "------FFFFF---"},
		"suspended":          {1, &agentv1.Restarts{Mode: agentv1.Restarts_SUSPENDED}, "--------"},
		"held":               {1, &agentv1.Restarts{}, "--------"},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			p := newPod(t)
			p.probe.FailureThreshold = c.threshold
			p.Connected(true)
			p.Told(c.told)
			p.fails(c.want)
		})
	}
}

// After a passed check the kubelet's count is known. The kubelet then restarts the container after exactly as many
// failures as the user's threshold, or after its own threshold if that is higher.
func TestUsersThreshold(t *testing.T) {
	for threshold, want := range map[int32]string{
		1: "FFFFF", 3: "FFFFF", 5: "FFFFF", 6: "-FFFFF-FFFFF", 7: "--FFFFF--FFFFF", 30: strings.Repeat("-", 25) + "FFFFF" + strings.Repeat("-", 25) + "FFFFF",
	} {
		virtual.Run(t, strconv.Itoa(int(threshold)), func(t *testing.T) {
			p := newPod(t)
			p.probe.FailureThreshold = threshold
			p.Passed(app)
			p.Told(&agentv1.Restarts{Mode: agentv1.Restarts_NATIVE})
			p.fails(want)
		})
	}
}

// A passed check restarts both counts: of the user's failures, and of the failures passed on to the kubelet.
func TestPassingCountsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t)
		p.probe.FailureThreshold = 7
		p.Passed(app)
		p.Told(&agentv1.Restarts{Mode: agentv1.Restarts_NATIVE})
		p.fails("--")
		p.Passed(app)
		p.fails("--FF")
		p.Passed(app)
		p.fails("--FFFFF-")
	})
}

// Failures before a grant count: if there were enough, the agent passes the next failure on at once.
func TestGrantAfterThreshold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t)
		p.Connected(true)
		p.fails(strings.Repeat("-", 30))
		p.Told(granted("a", 1))
		p.fails("FFFFF-")
	})
}

// The kubelet probes three times if a failure is kept from it, which may cause three checks. They count as one failure.
func TestOneFailureInAPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t)
		p.probe.PeriodSeconds = 10
		p.Told(&agentv1.Restarts{Mode: agentv1.Restarts_NATIVE})
		for _, want := range []string{"---", "---"} {
			p.fails(want)
			<-time.After(7 * time.Second)
		}
		p.fails("F")
	})
}

// A failure that is only kept until there are enough failures is not held if the kubelet alone decides. With a grant
// that is not used yet, it is held.
func TestBelowThresholdIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t)
		p.Connected(true)
		p.Told(&agentv1.Restarts{Mode: agentv1.Restarts_NATIVE})
		p.fails("-")
		p.shows(false)
		p.reports("app!")
		p.Told(granted("a", 1))
		p.fails("-")
		p.shows(true)
		p.reports("app:a")
	})
}
