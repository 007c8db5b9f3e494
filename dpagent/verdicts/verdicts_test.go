package verdicts

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/dpagent/serviceprobe"
)

var (
	startup   = mesh.Probe{Container: "app", Type: mesh.ProbeStartup}
	liveness  = mesh.Probe{Container: "app", Type: mesh.ProbeLiveness}
	readiness = mesh.Probe{Container: "app", Type: mesh.ProbeReadiness}
)

func succeeds() probe.Outcome { return probe.Outcome{Verdict: "success", Passed: true} }

func fails(reason string) probe.Outcome {
	return probe.Outcome{Verdict: "failure", Class: probe.Failed, Reason: reason}
}

// lines describes a report, a line for each probe.
func lines(m *agentv1.Verdicts) []string {
	var all []string
	for _, p := range m.GetProbes() {
		words := []string{p.GetContainer() + p.GetInbound(), p.GetProbe(), fmt.Sprintf("%d:", p.GetTotal())}
		for _, c := range p.GetChanges() {
			words = append(words, c.GetVerdict().Word(), c.GetAgo().AsDuration().String())
		}
		all = append(all, strings.TrimSpace(strings.Join(append(words, p.GetReason()), " ")))
	}
	return all
}

// due reports whether a report is due, and takes it.
func (h *History) due() bool {
	select {
	case <-h.wake:
		return true
	default:
		return false
	}
}

func TestChangesOfVerdicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(mesh.ProbeTable{readiness, liveness, startup, {Container: "app", Type: mesh.ProbePreStop}, {Type: mesh.ProbeLiveness}, {Container: "app"}})
		is := func(due bool, want ...string) {
			t.Helper()
			if got := h.due(); got != due {
				t.Errorf("a report is due: %v, want %v", got, due)
			}
			if diff := cmp.Diff(want, lines(h.Report())); diff != "" {
				t.Errorf("Report() (-want +got):\n%s", diff)
			}
			if err := agentv1.CheckVerdicts(h.Report()); err != nil {
				t.Errorf("the control plane refuses the report: %v", err)
			}
		}
		is(false, "app startup 0:", "app liveness 0:", "app readiness 0:")
		h.Checked(startup, succeeds())
		is(true, "app startup 1: success 0s", "app liveness 0:", "app readiness 0:")
		h.Checked(startup, succeeds())
		h.Checked(mesh.Probe{Container: "app", Type: mesh.ProbePreStop}, fails("a hook"))
		h.Checked(mesh.Probe{Container: "other", Type: mesh.ProbeLiveness}, fails("not of the table"))
		is(false, "app startup 1: success 0s", "app liveness 0:", "app readiness 0:")

		<-time.After(time.Minute)
		h.Checked(readiness, succeeds())
		<-time.After(time.Minute)
		h.Checked(readiness, fails(`read tcp 10.0.0.1:40312->10.0.0.1:80: connection reset`))
		h.Checked(liveness, probe.Outcome{Verdict: "errored", Class: probe.Held, Reason: "not a reason to restart yet"})
		is(true, "app startup 1: success 2m0s", "app liveness 1: held 0s not a reason to restart yet",
			"app readiness 2: success 1m0s failure 0s read tcp 10.0.0.1:80: connection reset")
		h.Checked(readiness, fails(`read tcp 10.0.0.1:40313->10.0.0.1:80: connection reset`))
		if h.due() {
			t.Error("a report is due for another connection with the same reason")
		}
		h.Checked(readiness, fails("timeout"))
		h.Checked(liveness, probe.Outcome{Verdict: "warning", Passed: true, Class: probe.Redirect, Reason: "stopped redirect"})
		is(true, "app startup 1: success 2m0s", "app liveness 2: held 0s warning 0s stopped redirect", "app readiness 2: success 1m0s failure 0s timeout")
	})
}

func TestOnlyTheLatestChangesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(mesh.ProbeTable{readiness})
		for range 9 {
			h.Checked(readiness, succeeds())
			<-time.After(time.Second)
			h.Checked(readiness, fails("refused"))
			<-time.After(time.Second)
		}
		p := h.Report().GetProbes()[0]
		if len(p.GetChanges()) != agentv1.MaxChanges || p.GetTotal() != 18 || p.GetChanges()[0].GetAgo().AsDuration() != 10*time.Second {
			t.Errorf("the report is %v", p)
		}
	})
}

// The kubelet asks for nothing while a container does not run: its last verdict must not stay.
func TestKubeletStopsAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := mesh.Probe{Container: "slow", Type: mesh.ProbeReadiness, PeriodSeconds: 60, TimeoutSeconds: 5}
		failed := mesh.Probe{Container: "slow", Type: mesh.ProbeStartup}
		h, at := New(mesh.ProbeTable{startup, liveness, slow, failed, readiness}), netip.MustParseAddrPort("10.0.0.1:80")
		ctx, cancel := context.WithCancel(t.Context())
		go h.Run(ctx)
		is := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if diff := cmp.Diff(want, lines(h.Report())); diff != "" {
				t.Errorf("Report() (-want +got):\n%s", diff)
			}
		}
		h.Checked(startup, succeeds())
		h.Checked(slow, succeeds())
		h.Checked(failed, fails("refused"))
		h.Checked(liveness, succeeds())
		h.Set(at, serviceprobe.State{Ready: true})
		<-time.After(20 * time.Second)
		h.Checked(liveness, succeeds())
		<-time.After(30 * time.Second)
		h.due()
		is("10.0.0.1:80 readiness 1: success 50s", "app startup 1: success 50s", "app liveness 1: success 50s", "app readiness 0:",
			"slow startup 2: failure 50s not asked 50s", "slow readiness 1: success 50s")
		<-time.After(6 * time.Second)
		is("10.0.0.1:80 readiness 1: success 56s", "app startup 1: success 56s", "app liveness 2: success 56s not asked 36s",
			"app readiness 0:", "slow startup 2: failure 56s not asked 56s", "slow readiness 1: success 56s")
		if err := agentv1.CheckVerdicts(h.Report()); err != nil || !h.due() {
			t.Errorf("no report is due, or the control plane refuses it: %v", err)
		}
		<-time.After(134 * time.Second)
		h.Checked(liveness, succeeds())
		is("10.0.0.1:80 readiness 1: success 3m10s", "app startup 1: success 3m10s",
			"app liveness 3: success 3m10s not asked 2m50s success 0s", "app readiness 0:",
			"slow startup 2: failure 3m10s not asked 3m10s", "slow readiness 2: success 3m10s not asked 3m10s")
		cancel()
	})
}

func TestInbounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, at := New(nil), netip.MustParseAddrPort("10.0.0.1:80")
		h.Set(at, serviceprobe.State{NoVerdict: true, Reason: "no descriptor"})
		h.Set(at, serviceprobe.State{Ready: true})
		<-time.After(time.Second)
		h.Set(at, serviceprobe.State{Reason: "connection refused"})
		if diff := cmp.Diff([]string{"10.0.0.1:80 readiness 3: errored 1s success 1s failure 0s connection refused"}, lines(h.Report())); diff != "" {
			t.Errorf("Report() (-want +got):\n%s", diff)
		}
		h.due()
		if h.Forget(at); len(h.Report().GetProbes()) > 0 || !h.due() {
			t.Error("an inbound without a probe stays")
		}
	})
}

// However many probes there are and whatever their reasons, the report is one that the control plane accepts.
func TestReportIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(nil)
		for i := range 200 {
			at := netip.AddrPortFrom(netip.MustParseAddr("fd00:1111:2222:3333:4444:5555:6666:7777"), uint16(50_000+i))
			for range agentv1.MaxChanges {
				h.Set(at, serviceprobe.State{Ready: true})
				h.Set(at, serviceprobe.State{Reason: strings.Repeat("ä", 300) + "\xff"})
			}
			h.Set(at, serviceprobe.State{Ready: i < 150})
		}
		m := h.Report()
		if err := agentv1.CheckVerdicts(m); err != nil || len(m.GetProbes()) != agentv1.MaxProbes || m.GetLeftOut() != 200-agentv1.MaxProbes {
			t.Errorf("%d probes, %d left out: %v", len(m.GetProbes()), m.GetLeftOut(), err)
		}
		if p := m.GetProbes()[0]; p.GetInbound() != "[fd00:1111:2222:3333:4444:5555:6666:7777]:50150" {
			t.Errorf("the first is %s, which succeeds", p.GetInbound())
		}
		if data, err := proto.Marshal(m); err != nil || len(data) > 32<<10 {
			t.Errorf("%d bytes: %v", len(data), err)
		}
	})
}
