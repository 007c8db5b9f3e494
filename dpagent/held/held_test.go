package held

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// app is the liveness probe of a container, with one check a second. The user wants a restart after three failures; the
// kubelet then needs five more.
var app = mesh.Probe{Container: "app", Type: mesh.ProbeLiveness, Guarded: true, FailureThreshold: 3, PeriodSeconds: 1, TimeoutSeconds: 1}

// pod is a Liveness under test.
type pod struct {
	*testing.T
	*Liveness
	probe mesh.Probe
	log   bytes.Buffer
	kept  []*agentv1.Restarts
	all   *prometheus.Registry
}

func newPod(t *testing.T) *pod {
	p := &pod{T: t, probe: app, all: prometheus.NewRegistry()}
	p.Liveness = New(Options{Keep: func(m *agentv1.Restarts) { p.kept = append(p.kept, m) }, Logger: slog.New(slog.NewTextHandler(&p.log, nil)), Registerer: p.all})
	return p
}

// fails makes one check a second that fails, and compares what the kubelet gets: F for the failure, - for a kept
// failure.
func (p *pod) fails(want string) {
	p.Helper()
	var got strings.Builder
	for range want {
		if p.Failed(p.probe, "refused") {
			got.WriteByte('-')
		} else {
			got.WriteByte('F')
		}
		<-time.After(time.Second)
	}
	if got.String() != want {
		p.Errorf("the kubelet gets %s, want %s", got.String(), want)
	}
}

func granted(name string, epoch int64) *agentv1.Restarts {
	return &agentv1.Restarts{Grants: []*agentv1.RestartGrant{{Name: name, Container: "app", Epoch: epoch}}}
}

// reports compares the report: app for a held container, app! for one whose failures are passed on, app:b with a grant
// in use, +app for a passing one, -b for an unused grant.
func (p *pod) reports(want string) {
	p.Helper()
	m := p.Report()
	var got []string
	for _, h := range m.GetHeld() {
		text := strings.TrimSuffix(h.GetContainer()+":"+h.GetGrant(), ":")
		if h.GetTold() {
			text += "!"
		}
		got = append(got, text)
	}
	for _, name := range m.GetPassing() {
		got = append(got, "+"+name)
	}
	for _, name := range m.GetUnused() {
		got = append(got, "-"+name)
	}
	if text := strings.Join(got, " "); text != want {
		p.Errorf("reported: %q, want %q", text, want)
	}
}

// shows compares the metric for app.
func (p *pod) shows(held bool) {
	p.Helper()
	if n := testutil.CollectAndCount(p.all, "sonde_liveness_held"); n > 1 || n == 1 != held {
		p.Errorf("%d containers are shown as held, want %t", n, held)
	}
}

func (p *pod) isDue(want bool) {
	p.Helper()
	select {
	case <-p.Due():
		if !want {
			p.Error("a report is due")
		}
	default:
		if want {
			p.Error("no report is due")
		}
	}
}

func TestHeldUntilGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t)
		p.fails("--") // before the first message of a control plane
		p.isDue(true)
		p.Connected(true)
		p.isDue(true)
		p.fails("--")
		p.isDue(false)
		p.reports("app")
		p.shows(true)
		p.Told(granted("a", 1))
		p.fails("FFFFF")
		p.shows(false)
		p.reports("app:a") // the container restarts, and gets no traffic meanwhile
		p.fails("--")
		p.reports("app")
		p.Told(granted("b", 1))
		p.fails("F")
		p.reports("app:b")
		p.Passed(app)
		p.reports("+app -b")
		p.fails("-") // b has expired
		p.reports("app -b")
		if len(p.kept) != 4 {
			t.Errorf("%d messages are kept, want two: a is used up, and b may be", len(p.kept))
		}
	})
}

// A grant of which no failure was passed on counts against the workload until it is returned unused. Here the check
// passes before the grant arrives, or before the next failure.
func TestGrantIsNotNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t)
		p.Connected(true)
		p.fails("-")
		p.Told(granted("a", 1))
		p.Passed(app)
		p.reports("+app -a")
		p.fails("--") // the container needs another grant
		p.reports("app -a")
		p.Passed(app)
		p.isDue(true)
		p.Told(granted("b", 1))
		p.isDue(true)
		p.reports("+app -b")
		p.Told(granted("b", 1))
		p.isDue(false)
	})
}

// The kubelet may restart the container after one failure if the agent has not seen its count start. The grant is then
// not returned, since the control plane may not have seen the restart yet.
func TestGrantThatMayHaveRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t)
		p.Connected(true)
		p.fails("--")
		p.Told(granted("a", 1))
		p.fails("F")
		p.Passed(app)
		p.reports("+app")
		p.fails("-")
		p.Told(granted("b", 1))
		p.fails("F") // the kubelet's first failure since the passed check
		p.Passed(app)
		p.reports("+app -b")
	})
}

// A grant expires after eight periods and timeouts, even if the kubelet has not probed.
func TestGrantExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t)
		p.Passed(app)
		p.Connected(true)
		p.fails("--")
		p.Told(granted("a", 1))
		p.fails("F")
		<-time.After(15*time.Second - time.Nanosecond)
		p.fails("F-")
		p.reports("app -a")
		p.Told(granted("a", 1)) // sent again
		p.fails("-")
	})
}

func TestGrantsOfEarlierLeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t)
		p.Connected(true)
		p.Told(&agentv1.Restarts{Grants: []*agentv1.RestartGrant{{Name: "other", Container: "sidecar", Epoch: 7}}})
		p.fails("-")
		p.Told(granted("a", 6))
		p.fails("-")
		if !strings.Contains(p.log.String(), "epoch=6") {
			t.Errorf("the log lacks the reason: %s", p.log.String())
		}
		p.Told(granted("a", 7))
		p.fails("FFFFF-")
	})
}

func TestModes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t)
		p.Connected(true)
		p.Told(&agentv1.Restarts{Mode: agentv1.Restarts_NATIVE})
		p.fails("--FF")
		p.reports("app!")
		p.shows(false)
		p.isDue(true)
		m := granted("a", 1)
		m.Mode = agentv1.Restarts_SUSPENDED
		p.Told(m)
		p.fails("--")
		p.reports("app")
		p.shows(true)
		p.isDue(true)
		p.Told(nil) // an earlier release of the control plane
		p.fails("FF")
		p.Told(&agentv1.Restarts{})
		p.fails("-")
		p.Passed(app)
		p.shows(false)
	})
}

// A grant in use is returned if native mode passes all failures on, and counts as used up once the kubelet got enough
// failures.
func TestNativeWhileGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t)
		p.Passed(app)
		p.Connected(true)
		p.fails("-")
		p.Told(granted("a", 1))
		p.fails("F")
		p.reports("app:a")
		m := granted("a", 1)
		m.Mode = agentv1.Restarts_NATIVE
		p.Told(m)
		p.fails("FFF")
		p.reports("app! -a")
		p.Told(granted("b", 1))
		p.fails("FFFFF")
		p.Told(m)
		p.fails("F")
		p.reports("app!")
	})
}

// While a container has its turn without the control plane, nothing is held.
func TestOwnTurnIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod(t)
		p.Told(&agentv1.Restarts{WhenAway: &agentv1.WhenAway{
			Policy: agentv1.WhenAway_SLOTS, After: durationpb.New(time.Second), Turn: 0, Turns: 2, TurnTime: durationpb.New(3 * time.Second),
		}})
		p.fails("--F")
		p.shows(false)
		p.fails("F-")
		p.shows(true)
	})
}

func TestControlPlaneAway(t *testing.T) {
	away := func(w *agentv1.WhenAway) *agentv1.Restarts { return &agentv1.Restarts{WhenAway: w} }
	after := durationpb.New(10 * time.Second)
	for name, c := range map[string]struct {
		told *agentv1.Restarts
		want string // from the end of the session on
	}{
		"hold":              {away(&agentv1.WhenAway{After: after}), strings.Repeat("-", 40)},
		"nothing said":      {away(nil), strings.Repeat("-", 40)},
		"slots, the first":  {away(&agentv1.WhenAway{Policy: agentv1.WhenAway_SLOTS, After: after, Turn: 0, Turns: 3, TurnTime: durationpb.New(5 * time.Second)}), strings.Repeat("-", 10) + "FFFFF----------FFFFF"},
		"slots, the second": {away(&agentv1.WhenAway{Policy: agentv1.WhenAway_SLOTS, After: after, Turn: 1, Turns: 3, TurnTime: durationpb.New(5 * time.Second)}), strings.Repeat("-", 15) + "FFFFF-----"},
		"slots, not known":  {away(&agentv1.WhenAway{Policy: agentv1.WhenAway_SLOTS, After: after}), strings.Repeat("-", 40)},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			p := newPod(t)
			p.Connected(true)
			p.Told(c.told)
			p.fails("-----")
			p.Connected(false)
			p.fails(c.want)
			p.Connected(true)
			p.fails("--")
		})
	}
}

// Pods that lose the control plane together do not all restart together.
func TestNativeWithJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const after = 100 * time.Second
		seen := map[time.Duration]bool{}
		for range 40 {
			p := newPod(t)
			p.Connected(true)
			p.Told(&agentv1.Restarts{WhenAway: &agentv1.WhenAway{Policy: agentv1.WhenAway_NATIVE, After: durationpb.New(after)}})
			p.Connected(false)
			lost := time.Now()
			for p.Failed(app, "refused") {
				<-time.After(time.Second)
			}
			held := time.Since(lost)
			if held < after || held > after*3/2 {
				t.Fatalf("held for %s, want from %s to half of it more", held, after)
			}
			seen[held] = true
		}
		if len(seen) < 5 {
			t.Errorf("40 pods have %d different delays", len(seen))
		}
	})
}
