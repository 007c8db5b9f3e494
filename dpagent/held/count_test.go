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

// An agent that does not know what the kubelet has counted before waits for the user's threshold, in each mode in which the kubelet is told. Then it is told
// until it has restarted the container: the next check is of another one, with a count that is known.
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

// Once a check has passed the kubelet's count is known. It restarts the container after exactly as many failures as the user has written, or after its own
// number if that is more.
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

// A check that passes begins another count, of the user's failures and of those that the kubelet was told of.
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

// Failures before a grant count: where there have been enough the kubelet is told at once.
func TestGrantAfterThreshold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t)
		p.Connected(true)
		p.fails(strings.Repeat("-", 30))
		p.Told(granted("a", 1))
		p.fails("FFFFF-")
	})
}

// The kubelet asks three times for what is kept from it, which may be three checks. They count once.
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

// What is kept from the kubelet only until there are enough failures is not held, where the kubelet alone decides; by a grant that is not told yet it is.
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
