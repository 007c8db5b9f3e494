package serviceprobe

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

var (
	inbound = netip.MustParseAddrPort("10.0.0.1:80")
	other   = netip.MustParseAddrPort("10.0.0.1:81")
)

func probeOf(at netip.AddrPort, failure, success uint32) Probe {
	return Probe{
		Inbound: at, Application: netip.MustParseAddrPort("127.0.0.1:8080"), Check: mesh.Probe{TCPSocket: &mesh.TCPSocketProbe{Port: 8080}},
		Period: 10 * time.Second, Timeout: time.Second, FailureThreshold: failure, SuccessThreshold: success,
	}
}

// Outcomes of checks.
var (
	good     = probe.Outcome{Verdict: "success", Passed: true}
	refused  = probe.Outcome{Verdict: "failure", Class: probe.ConnectionRefused, Reason: "connection refused"}
	timedOut = probe.Outcome{Verdict: "failure", Class: probe.Timeout, Reason: "timeout"}
	warned   = probe.Outcome{Verdict: "warning", Passed: true, Class: probe.Redirect, Reason: "302"}
	reset    = probe.Outcome{Verdict: "failure", Class: probe.Failed, Reason: "read tcp 127.0.0.1:40312->127.0.0.1:80: connection reset by peer"}
	reset2   = probe.Outcome{Verdict: "failure", Class: probe.Failed, Reason: "read tcp 127.0.0.1:40313->127.0.0.1:80: connection reset by peer"}
	eof      = probe.Outcome{Verdict: "failure", Class: probe.Failed, Reason: "EOF"}
	unknown  = probe.Outcome{Verdict: "errored", Discarded: true, Class: probe.AgentFault, Reason: "too many open files"}
)

// reports are the calls of a Server's Reporter, as texts.
type reports struct {
	mu   sync.Mutex
	told []string
}

func (r *reports) Set(at netip.AddrPort, s State) {
	found := strconv.FormatBool(s.Ready)
	if s.NoVerdict {
		found = "unknown"
	}
	r.tell(strings.TrimSpace(fmt.Sprint(at.Port(), " ", found, " ", s.Reason)))
}
func (r *reports) Forget(at netip.AddrPort) { r.tell(fmt.Sprint(at.Port(), " forgotten")) }

func (r *reports) tell(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, text)
}

// since returns the reports after the first n.
func (r *reports) since(n int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.told[n:]...)
}

// script is an application with these outcomes; the last one repeats.
type script struct {
	mu       sync.Mutex
	outcomes []probe.Outcome
	asked    []time.Time
	ended    bool
}

func (s *script) Ask(context.Context) probe.Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, time.Now())
	found := s.outcomes[0]
	if len(s.outcomes) > 1 {
		s.outcomes = s.outcomes[1:]
	}
	return found
}

func (s *script) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

// then replaces the outcomes.
func (s *script) then(outcomes ...probe.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outcomes = outcomes
}

// harness is a Server that runs until the test ends, with one script for all checks. It must be created in a synctest
// bubble.
type harness struct {
	*Server
	reports  reports
	script   script
	log      bytes.Buffer
	registry *prometheus.Registry
	stop     func()
}

func newHarness(outcomes ...probe.Outcome) *harness {
	h := &harness{registry: prometheus.NewRegistry()}
	h.script.outcomes = outcomes
	h.Server = New(Options{Reporter: &h.reports, Logger: slog.New(slog.NewTextHandler(&h.log, nil)), Registerer: h.registry})
	h.newCheck = func(Probe) check { return &h.script }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.Run(ctx) // always nil
	}()
	h.stop = func() {
		cancel()
		<-done
	}
	return h
}

// periods lets n periods pass, so that n+1 checks are made, since a check comes at a random point of its period.
func periods(n int) {
	<-time.After(time.Duration(n) * 10 * time.Second)
	synctest.Wait()
}

func TestThresholds(t *testing.T) {
	tests := map[string]struct {
		failure, success uint32
		outcomes         []probe.Outcome
		want             []string
	}{
		"the first success is enough":      {3, 1, []probe.Outcome{good}, []string{"80 true"}},
		"a warning is a success":           {3, 1, []probe.Outcome{warned}, []string{"80 true"}},
		"several successes":                {1, 3, []probe.Outcome{good, good, good}, []string{"80 true"}},
		"too few successes":                {2, 3, []probe.Outcome{good, good, refused, good, good, refused, refused}, []string{"80 false connection refused"}},
		"failures below the threshold":     {3, 1, []probe.Outcome{good, refused, refused, good}, []string{"80 true"}},
		"failures":                         {3, 1, []probe.Outcome{good, refused, refused, refused, good}, []string{"80 true", "80 false connection refused", "80 true"}},
		"never ready":                      {9, 1, []probe.Outcome{refused}, []string{"80 false connection refused"}},
		"the first failure is enough":      {9, 1, []probe.Outcome{refused, refused, refused, good}, []string{"80 false connection refused", "80 true"}},
		"another class of reason":          {1, 1, []probe.Outcome{refused, timedOut, timedOut, refused}, []string{"80 false connection refused", "80 false timeout", "80 false connection refused"}},
		"another reason of a class":        {1, 1, []probe.Outcome{reset, eof, eof}, []string{"80 false read tcp 127.0.0.1:80: connection reset by peer", "80 false EOF"}},
		"the same on another connection":   {1, 1, []probe.Outcome{reset, reset2}, []string{"80 false read tcp 127.0.0.1:80: connection reset by peer"}},
		"a discarded check does not count": {2, 2, []probe.Outcome{good, good, refused, unknown, refused}, []string{"80 true", "80 false connection refused"}},
		"discarded before a verdict":       {2, 2, []probe.Outcome{good, unknown, good, unknown}, []string{"80 unknown too many open files", "80 true"}},
		"nothing but discarded":            {1, 1, []probe.Outcome{unknown}, []string{"80 unknown too many open files"}},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			h := newHarness(tc.outcomes...)
			defer h.stop()
			h.Set([]Probe{probeOf(inbound, tc.failure, tc.success)})
			periods(len(tc.outcomes) + 2)
			if diff := cmp.Diff(tc.want, h.reports.since(0), cmp.Transformer("none", func(s []string) []string { return append([]string{}, s...) })); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFirstCheckIsAtOnce also checks that later checks come once in each period, from a random point on.
func TestFirstCheckIsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(good)
		defer h.stop()
		began := time.Now()
		h.Set([]Probe{probeOf(inbound, 1, 1)})
		periods(5)
		asked := h.script.asked
		if len(asked) < 5 || !asked[0].Equal(began) {
			t.Fatalf("checked at %v, want at once and then in each period since %v", asked, began)
		}
		for i := 2; i < len(asked); i++ {
			if d := asked[i].Sub(asked[i-1]); d != 10*time.Second {
				t.Errorf("%s between two checks", d)
			}
		}
	})
}

// TestChangedProbeKeepsItsState changes the probe of an inbound: the previous state stays until the new probe finds a
// different one.
func TestChangedProbeKeepsItsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(good)
		defer h.stop()
		h.Set([]Probe{probeOf(inbound, 1, 1)})
		synctest.Wait()
		h.script.then(refused)
		h.Set([]Probe{probeOf(inbound, 2, 1)})
		synctest.Wait()
		if diff := cmp.Diff([]string{"80 true"}, h.reports.since(0)); diff != "" {
			t.Errorf("reported after one failure (-want +got):\n%s", diff)
		}
		periods(1)
		if diff := cmp.Diff([]string{"80 false connection refused"}, h.reports.since(1)); diff != "" {
			t.Errorf("reported after two failures (-want +got):\n%s", diff)
		}
	})
}

func TestSameProbeGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(good)
		defer h.stop()
		h.Set([]Probe{probeOf(inbound, 1, 1)})
		synctest.Wait()
		h.Set([]Probe{probeOf(inbound, 1, 1), probeOf(other, 1, 1)})
		synctest.Wait()
		if n := len(h.script.asked); n != 2 {
			t.Errorf("%d checks, want one of each inbound", n)
		}
		if diff := cmp.Diff([]string{"80 true", "81 true"}, h.reports.since(0)); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
	})
}

func TestRemovedProbeIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(refused)
		defer h.stop()
		h.Set([]Probe{probeOf(inbound, 1, 1)})
		synctest.Wait()
		h.Set(nil)
		synctest.Wait()
		if diff := cmp.Diff([]string{"80 false connection refused", "80 forgotten"}, h.reports.since(0)); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		n := len(h.script.asked)
		periods(3)
		if len(h.script.asked) != n || !h.script.ended {
			t.Error("the application is checked after its probe was removed")
		}
		if n := testutil.CollectAndCount(h.metrics.total) + testutil.CollectAndCount(h.metrics.up); n != 0 {
			t.Errorf("%d series of the removed probe remain", n)
		}
	})
}

func TestMetricsAndLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(good, refused, refused, refused, unknown, unknown, good)
		defer h.stop()
		h.Set([]Probe{probeOf(inbound, 2, 1)})
		periods(7)
		h.stop()
		const want = `
# HELP sonde_service_probe_ready 1 while the serviceProbe of an inbound reports its application ready for traffic, otherwise 0.
# TYPE sonde_service_probe_ready gauge
sonde_service_probe_ready{inbound="10.0.0.1:80"} 1
`
		if err := testutil.GatherAndCompare(h.registry, strings.NewReader(want), "sonde_service_probe_ready"); err != nil {
			t.Error(err)
		}
		for verdict, n := range map[string]float64{"failure": 3, "errored": 2} {
			if got := testutil.ToFloat64(h.metrics.total.WithLabelValues(inbound.String(), verdict)); got != n {
				t.Errorf("%s is counted %v times, want %v", verdict, got, n)
			}
		}
		for text, n := range map[string]int{
			"application ready": 2, "application not ready": 1, "reached no verdict": 1, "checks=2": 1, `err="connection refused"`: 1, "after=": 2, "probe=tcpSocket": 4,
		} {
			if got := strings.Count(h.log.String(), text); got != n {
				t.Errorf("%q is logged %d times, want %d:\n%s", text, got, n, h.log.String())
			}
		}
	})
}

// stuckCheck never ends, whatever its timeout.
type stuckCheck struct{ release chan struct{} }

func (s stuckCheck) Ask(context.Context) probe.Outcome {
	<-s.release
	return unknown
}
func (stuckCheck) End() {}

func TestStuckCheckIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(good)
		defer h.stop()
		stuck := stuckCheck{make(chan struct{})}
		h.newCheck = func(Probe) check { return stuck }
		h.Set([]Probe{probeOf(inbound, 1, 1)})
		periods(3)
		if err := h.Alive(t.Context()); err != nil {
			t.Errorf("after 30s: %v", err)
		}
		periods(1)
		if err := h.Alive(t.Context()); err == nil || !strings.Contains(err.Error(), "service-probe 10.0.0.1:80") {
			t.Errorf("after 40s: %v", err)
		}
		close(stuck.release)
		periods(1)
		if err := h.Alive(t.Context()); err != nil {
			t.Errorf("after it has ended: %v", err)
		}
	})
}
