package session

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/dpagent/serviceprobe"
)

func inboundAt(port int) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(port))
}

// woken reports whether a report is due.
func (r *Readiness) woken() bool {
	select {
	case <-r.wake:
		return true
	default:
		return false
	}
}

func TestReadinessReportsTheLastStateOnce(t *testing.T) {
	r := NewReadiness()
	if r.All(); r.woken() {
		t.Error("woken without a pending report")
	}
	r.Set(inboundAt(80), serviceprobe.State{Ready: true})
	r.Set(inboundAt(80), serviceprobe.State{Reason: "refused"})
	r.Set(inboundAt(81), serviceprobe.State{Ready: true})
	r.Forget(inboundAt(81))
	want := &agentv1.Readiness{Inbounds: []*agentv1.InboundReadiness{{Inbound: "10.0.0.1:80", Reason: "refused"}}}
	if diff := cmp.Diff(want, r.take(), protocmp.Transform()); diff != "" || !r.woken() {
		t.Errorf("reported (-want +got):\n%s", diff)
	}
	if again := r.take(); len(again.GetInbounds()) != 0 {
		t.Errorf("reported twice: %v", again)
	}
	r.All() // as for a new session
	if diff := cmp.Diff(want, r.take(), protocmp.Transform()); diff != "" || !r.woken() {
		t.Errorf("reported to a new session (-want +got):\n%s", diff)
	}
}

func TestManyInboundsComeInSeveralReports(t *testing.T) {
	r := NewReadiness()
	const inbounds = 2*agentv1.MaxReported + 1
	for i := range inbounds {
		r.Set(inboundAt(1000+i), serviceprobe.State{Ready: true})
	}
	var seen []string
	for r.woken() {
		report := r.take()
		if n := len(report.GetInbounds()); n > agentv1.MaxReported {
			t.Errorf("%d inbounds in one report", n)
		}
		for _, in := range report.GetInbounds() {
			seen = append(seen, in.GetInbound())
		}
	}
	if slices.Sort(seen); len(slices.Compact(seen)) != inbounds {
		t.Errorf("reported are %s", fmt.Sprint(seen))
	}
}
