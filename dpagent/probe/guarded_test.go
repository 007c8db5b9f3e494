package probe_test

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

// grants is a probe.Guarded that holds failures back if it is set to.
type grants struct {
	mu             sync.Mutex
	granted        bool
	passed, failed int
}

func (g *grants) Passed(mesh.Probe) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.passed++
}

func (g *grants) Failed(_ mesh.Probe, _ string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failed++
	return !g.granted
}

func (g *grants) grant(granted bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.granted = granted
}

// A held failure is Errored for the kubelet, which probes three times at once. One check answers all three.
func TestGuarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		var fails atomic.Bool
		var asked atomic.Int32
		port := pod.web(func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			if fails.Load() {
				w.WriteHeader(http.StatusTeapot)
			}
		}, nil)
		p, other := get(port, "/live"), get(port, "/ready")
		p.Type, p.Guarded, p.FailureThreshold, p.PeriodSeconds = mesh.ProbeLiveness, true, 3, 10
		other.Type, other.ID = mesh.ProbeReadiness, "other"
		g, registry := &grants{}, prometheus.NewRegistry()
		var checked []string
		address := pod.serve(probe.Options{Table: mesh.ProbeTable{p, other}, Guarded: g, Registerer: registry, Checked: func(p mesh.Probe, o probe.Outcome) {
			g.mu.Lock()
			defer g.mu.Unlock()
			checked = append(checked, fmt.Sprint(p.Type, " ", o.Verdict, " ", o.Class))
		}})
		is := func(p mesh.Probe, want string) {
			t.Helper()
			if verdict, text := pod.probe(address, p.VirtualPath(), p.ID); verdict != want {
				t.Errorf("%s: %s %q, want %s", p.Type, verdict, text, want)
			}
		}
		is(p, "success")
		fails.Store(true)
		before := asked.Load()
		for range 3 {
			is(p, "errored")
		}
		if n := asked.Load() - before; n != 1 {
			t.Errorf("the application was asked %d times, want once", n)
		}
		is(other, "failure") // not guarded
		<-time.After(600 * time.Millisecond)
		g.grant(true)
		is(p, "failure")
		is(p, "failure")
		fails.Store(false)
		is(p, "success")
		if g.passed != 2 || g.failed != 3 {
			t.Errorf("%d checks have passed and %d failed, want 2 and 3", g.passed, g.failed)
		}
		want := []string{"liveness success ", "liveness errored Held", "readiness failure HTTPStatus", "liveness failure HTTPStatus", "liveness failure HTTPStatus", "liveness success "}
		if diff := cmp.Diff(want, checked); diff != "" {
			t.Errorf("Checked() was called with (-want +got):\n%s", diff)
		}
		if got := counts(t, registry); got["sonde_probe_total app liveness failure"] != 3 || got["sonde_probe_total app liveness errored"] != 0 {
			t.Errorf("the metrics do not count the real verdicts: %v", got)
		}
	})
}

// Results of a caller with the user agent of another kubelet do not count while the pod's own probes regularly.
func TestStrangers(t *testing.T) {
	const period = 20 * time.Second
	start := func(t *testing.T) (g *grants, reported *atomic.Int32, as func(agent, want string)) {
		pod := newPod(t)
		p := mesh.Probe{ID: "app-liveness", Container: "app", Type: mesh.ProbeLiveness, TimeoutSeconds: 1, FailureThreshold: 1,
			PeriodSeconds: int32(period.Seconds()), Guarded: true,
			HTTPGet: &mesh.HTTPGetProbe{Port: pod.serveH2C(http.StatusNoContent), Protocol: mesh.HTTPGetHTTP2}}
		g, reported = &grants{granted: true}, new(atomic.Int32)
		address := pod.serve(probe.Options{Table: mesh.ProbeTable{p}, Guarded: g, Failed: func(probe.Failure) { reported.Add(1) }})
		return g, reported, func(agent, want string) {
			t.Helper()
			if verdict, text := (kubelet{pod: pod, agent: agent}).probe(address, p.VirtualPath(), ""); verdict != want {
				t.Errorf("%s: %s %q, want %s", agent, verdict, text, want)
			}
		}
	}
	const passes, fails = "kube-probe/1.37", "kube-probe/1.36"
	regularly := func(times int, ask func()) {
		for range times {
			ask()
			<-time.After(period)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		g, reported, as := start(t)
		regularly(4, func() { as(passes, "success") })
		as(fails, "errored")
		if g.failed != 0 || reported.Load() != 0 {
			t.Errorf("%d failures of a stranger have counted, and %d are reported, want none", g.failed, reported.Load())
		}
		<-time.After(2 * period) // no kubelet probes by these rules any longer: it may have been upgraded
		as(fails, "failure")
		if g.failed != 1 || reported.Load() != 1 {
			t.Errorf("%d failures have counted, and %d are reported, want 1 of each", g.failed, reported.Load())
		}
	})
	synctest.Test(t, func(t *testing.T) { // a stranger does not hide the kubelet's failures
		g, reported, as := start(t)
		as(passes, "success") // before the kubelet's first check
		regularly(4, func() { as(fails, "failure") })
		as(passes, "success")
		as(fails, "failure")
		if g.passed != 1 || g.failed != 5 || reported.Load() != 5 {
			t.Errorf("%d passes and %d failures have counted, and %d are reported, want 1, 5 and 5", g.passed, g.failed, reported.Load())
		}
	})
}
