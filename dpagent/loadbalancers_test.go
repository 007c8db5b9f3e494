package dpagent_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/dpagent"
	"github.com/sonde-mesh/sonde/dpagent/workdir"
	"github.com/sonde-mesh/sonde/internal/testing/controlplanetest"
	"github.com/sonde-mesh/sonde/internal/testing/envoytest"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// lbPort is the port for load balancers.
const lbPort = 8090

func withLB(o *dpagent.Options) { o.LBHealthPort = lbPort }

// askLB sends a request as a load balancer does. It returns the status code, 0 without a response, and the reasons.
func (w *world) askLB(path string) (code int, reasons []string) {
	w.t.Helper()
	code, body := w.get(lbPort, path)
	var a struct {
		Healthy bool
		Reasons []string
	}
	if err := json.Unmarshal([]byte(body), &a); err != nil {
		return code, []string{body}
	}
	if a.Healthy != (code == http.StatusOK) {
		w.t.Errorf("%s = %d, but the body says healthy: %t", path, code, a.Healthy)
	}
	return code, a.Reasons
}

// lbIs fails the test unless a load balancer gets this response: 200 without reasons, or 503 with them.
func (w *world) lbIs(when, path string, reasons ...string) {
	w.t.Helper()
	synctest.Wait()
	want := http.StatusOK
	if len(reasons) > 0 {
		want = http.StatusServiceUnavailable
	}
	if code, why := w.askLB(path); code != want || !slices.Equal(why, reasons) {
		w.t.Errorf("%s: %s = %d %q, want %d %q", when, path, code, why, want, reasons)
	}
}

func TestLoadBalancerSeesDrainStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "drain-state")
		o := w.options()
		withLB(&o)
		r := w.run(o)
		for range 10 {
			time.Sleep(time.Second)
			w.lbIs("before the agent has joined", "/healthz", "unready")
			w.lbIs("before the agent has joined", "/livez")
		}
		w.Start()
		r.waitReady()
		w.ExpectHello()
		w.lbIs("ready", "/healthz")
		for _, tc := range []struct {
			state   *agentv1.DrainState
			reasons []string
		}{
			{&agentv1.DrainState{Node: "taint of node a"}, []string{"node"}},
			{&agentv1.DrainState{}, nil},
			{&agentv1.DrainState{Administrator: "node a: kernel"}, []string{"administrator"}},
			{&agentv1.DrainState{Administrator: "node a: kernel", ServesOn: "service web"}, nil},
			{&agentv1.DrainState{Terminating: true, Node: "taint of node a", ServesOn: "service web"}, []string{"terminating"}},
			{&agentv1.DrainState{}, nil},
			{&agentv1.DrainState{Terminating: true}, []string{"terminating"}},
		} {
			w.SendDrainState(tc.state)
			w.lbIs(tc.state.String(), "/healthz", tc.reasons...)
			time.Sleep(time.Minute)
			w.lbIs("a minute after "+tc.state.String(), "/healthz", tc.reasons...)
			w.lbIs("a drain does not fail /livez", "/livez")
			if code, body := r.get("/readyz"); code != http.StatusOK {
				t.Errorf("%v: /readyz = %d %s, want 200: a drain does not concern the supervisor", tc.state, code, body)
			}
		}
		w.Stop()
		time.Sleep(time.Minute)
		w.lbIs("without a control plane", "/healthz", "terminating")
		w.Start()
		w.ExpectHello()
		w.lbIs("before the control plane's first message", "/healthz", "terminating")
		w.Set(func(s *controlplanetest.State) { s.Features = nil })
		w.Restart()
		w.ExpectHello()
		w.lbIs("with a control plane that cannot withdraw the drain", "/healthz")
		w.Stop()
		if err := os.WriteFile(filepath.Join(o.WorkDir, workdir.FileEnding), nil, 0o600); err != nil { // as its preStop hook does
			t.Fatal(err)
		}
		w.lbIs("after the preStop hook", "/healthz", "terminating")
	})
}

// TestWarningsKeepLoadBalancers checks that warnings do not remove a proxy from the load balancer: another agent uses
// its name, and its endpoints are not reported ready.
func TestWarningsKeepLoadBalancers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "drain-state", "endpoints")
		r := w.start(withLB)
		w.lbIs("ready", "/healthz")
		w.Send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Duplicate{Duplicate: &agentv1.Duplicate{Address: "10.0.0.9"}}}
		w.Send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Endpoints{Endpoints: &agentv1.Endpoints{Reason: "the application is not ready"}}}
		time.Sleep(time.Second) // results of checks are reused for a moment
		code, body := r.get("/readyz?verbose")
		if code != http.StatusOK || !strings.Contains(body, "10.0.0.9") || !strings.Contains(body, "the application is not ready") {
			t.Errorf("/readyz = %d %s", code, body)
		}
		w.lbIs("with warnings", "/healthz")
	})
}

// TestLoadBalancersAndSupervisorsHavePortsOfTheirOwn checks that neither port answers the other's requests: a
// supervisor that called /healthz would restart a draining proxy.
func TestLoadBalancersAndSupervisorsHavePortsOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.start(withLB)
		w.lbIs("ready", "/healthz")
		for path, want := range map[string]struct{ supervisor, balancer int }{
			"/healthz":                     {http.StatusNotFound, http.StatusOK},
			"/livez":                       {http.StatusOK, http.StatusOK},
			"/livez/envoy":                 {http.StatusOK, http.StatusNotFound},
			"/readyz":                      {http.StatusOK, http.StatusNotFound},
			"/readyz/identity":             {http.StatusOK, http.StatusNotFound},
			"/metrics":                     {http.StatusOK, http.StatusNotFound},
			"/grpc.health.v1.Health/Check": {http.StatusMethodNotAllowed, http.StatusNotFound},
			"/healthz/../readyz":           {http.StatusOK, http.StatusNotFound},
			"//readyz":                     {http.StatusOK, http.StatusNotFound},
			"/healthz/":                    {http.StatusNotFound, http.StatusNotFound},
		} {
			if code, body := r.get(path); code != want.supervisor {
				t.Errorf("the supervisor's %s = %d %s, want %d", path, code, body, want.supervisor)
			}
			if code, body := w.get(lbPort, path); code != want.balancer {
				t.Errorf("the load balancer's %s = %d %s, want %d", path, code, body, want.balancer)
			}
		}
	})
}

// TestEnvoyHangs hangs an Envoy: its agent starts another one, and stays alive meanwhile.
func TestEnvoyHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.start(withLB)
		time.Sleep(time.Minute)
		w.lbIs("before", "/livez")
		w.envoys.Last().SetState(envoytest.Stopped)
		for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(poll) {
			if code, body := r.get("/livez"); code != http.StatusOK {
				t.Fatalf("/livez = %d %s", code, body)
			}
		}
		if n := len(w.envoys.All()); n != 2 {
			t.Errorf("Envoy was started %d times, want twice", n)
		}
		w.lbIs("a minute later", "/livez")
		w.lbIs("a minute later", "/healthz")
	})
}

func TestDrainServesOnForLoadBalancers(t *testing.T) {
	const serves = 3 * time.Second
	tests := map[string]struct {
		change  func(*dpagent.Options)
		deleted time.Duration // how long before the end the control plane reports the pod deleted; 0: never
		want    time.Duration // how long the agent keeps serving
	}{
		"told to end":    {want: serves},
		"deleted before": {deleted: 2 * time.Second, want: serves - 2*time.Second},
		"last to end":    {change: func(o *dpagent.Options) { o.LastToEnd = true }},
		"never asked":    {change: func(o *dpagent.Options) { o.LBHealthPort = 0 }},
		"no time":        {change: func(o *dpagent.Options) { o.LBDrainTime = 0 }},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			w := newWorld(t, "drain-state")
			var o dpagent.Options
			r := w.start(withLB, func(options *dpagent.Options) {
				options.LBDrainTime = serves
				if tc.change != nil {
					tc.change(options)
				}
				o = *options
			})
			begun := []string{}
			if tc.deleted > 0 {
				w.SendDrainState(&agentv1.DrainState{Terminating: true})
				w.lbIs("deleted", "/healthz", "terminating")
				time.Sleep(tc.deleted)
				begun = drainPosts[:2]
			}
			w.envoys.Last().SetGauges(openRequest)
			r.agent.Drain()
			if o.LBHealthPort > 0 {
				w.lbIs("at once", "/healthz", "terminating")
			}
			w.Expect(func(m *agentMessage) bool { return m.GetDraining() != nil })
			if tc.want > 0 {
				time.Sleep(tc.want - time.Millisecond)
				r.posted("while it serves on", begun)
				time.Sleep(time.Millisecond)
			}
			r.stillRuns()
			w.envoys.Last().SetGauges("")
			quiet := quietTime
			if o.LastToEnd {
				quiet = 0
			}
			if took := r.waitEnd(); took < quiet || took > quiet+poll {
				t.Errorf("the agent ended %s after it kept serving, want %s", took, quiet)
			}
			if got := r.servesOn(); got != tc.want {
				t.Errorf("logged servesOn = %s, want %s", got, tc.want)
			}
		})
	}
}

var servesOnField = regexp.MustCompile(`msg="drain begins" .*servesOn=(\S+)`)

// servesOn returns how long the agent keeps serving while it drains, according to the log.
func (r *running) servesOn() time.Duration {
	r.t.Helper()
	m := servesOnField.FindStringSubmatch(r.logs.String())
	if m == nil {
		r.t.Fatal("the log has no servesOn")
	}
	d, err := time.ParseDuration(m[1])
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

// TestSecondSignalWhileItServesOn checks that the control plane gets the drain notice while the proxy keeps serving,
// and that a second signal ends the agent.
func TestSecondSignalWhileItServesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.start(withLB, func(o *dpagent.Options) { o.LBDrainTime = time.Hour })
		r.agent.Drain()
		w.Expect(func(m *agentMessage) bool { return m.GetDraining() != nil })
		time.Sleep(time.Minute)
		r.stillRuns()
		r.cancel()
		if took := r.waitEnd(); took != 0 {
			t.Errorf("the agent ended after %s, want at once", took)
		}
	})
}

func TestLoadBalancerPortIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		taken, err := w.network.Listen(t.Context(), "tcp", fmt.Sprint(":", lbPort))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = taken.Close() }()
		o := w.options()
		withLB(&o)
		agent, err := newAgent(t, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := agent.Run(wait.Context(t)); err == nil || !strings.Contains(err.Error(), "LBHealthPort") ||
			!strings.Contains(err.Error(), strconv.Itoa(lbPort)) {
			t.Errorf("Run() error = %v, want one that names field and port", err)
		}
	})
}
