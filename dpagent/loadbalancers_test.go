package dpagent_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/dpagent"
	"github.com/sonde-mesh/sonde/dpagent/workdir"
)

// balancer asks an agent as a load balancer does.
type balancer struct {
	t    testing.TB
	port int
}

// answer is what a load balancer may read.
type answer struct {
	LastUpdated time.Time
	Healthy     bool
	Reasons     []string
	Status      map[string]struct{ Healthy bool }
}

// ask returns the code, 0 if nobody answers, and the reasons.
func (b balancer) ask(path string) (code int, reasons []string) {
	b.t.Helper()
	code, a, err := b.get(path)
	if err != nil {
		return code, []string{err.Error()}
	}
	if a.Healthy != (code == http.StatusOK) {
		b.t.Errorf("%s = %d, but the body says healthy: %t", path, code, a.Healthy)
	}
	return code, a.Reasons
}

func (b balancer) get(path string) (int, answer, error) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var a answer
	r, err := client.Get("http://" + net.JoinHostPort("localhost", strconv.Itoa(b.port)) + path)
	if err != nil {
		return 0, a, err
	}
	err = json.NewDecoder(r.Body).Decode(&a)
	return r.StatusCode, a, errors.Join(err, r.Body.Close())
}

// becomes waits until the answer is that.
func (b balancer) becomes(path string, limit time.Duration, code int, reasons ...string) {
	b.t.Helper()
	eventually(b.t, limit, func() string {
		if got, why := b.ask(path); got != code || !slices.Equal(why, reasons) {
			return fmt.Sprintf("%s = %d %q, want %d %q", path, got, why, code, reasons)
		}
		return ""
	})
}

// stays asks for a second.
func (b balancer) stays(when, path string, code int, reasons ...string) {
	b.t.Helper()
	until := time.Now().Add(time.Second)
	eventually(b.t, 10*time.Second, func() string {
		if got, why := b.ask(path); got != code || !slices.Equal(why, reasons) {
			b.t.Fatalf("%s: %s = %d %q, want %d %q", when, path, got, why, code, reasons)
		}
		if time.Now().Before(until) {
			return "going on"
		}
		return ""
	})
}

func drainState(d *agentv1.DrainState) *agentv1.ControlMessage {
	return &agentv1.ControlMessage{Message: &agentv1.ControlMessage_DrainState{DrainState: d}}
}

// newBalanced returns a control plane that knows of drains, and the options of an agent that load balancers ask.
func newBalanced(t testing.TB, p ports) (*controlPlane, dpagent.Options, balancer) {
	t.Helper()
	cp := newControlPlane(t, bootstrap(t, p))
	cp.set(func() { cp.features = []string{"drain-state"} })
	o := options(t, cp)
	o.LBHealthPort = freePort(t)
	return cp, o, balancer{t, o.LBHealthPort}
}

// moment is how long a load balancer may wait for what is to come at once.
const moment = 15 * time.Second

func TestLoadBalancerSeesDrainStates(t *testing.T) {
	t.Parallel()
	cp, o, lb := newBalanced(t, ports{})
	r := startAgent(t, o)
	r.logged("not joined yet")
	lb.stays("before the agent has joined", "/healthz", http.StatusServiceUnavailable, "unready")
	lb.stays("before the agent has joined", "/livez", http.StatusOK)
	cp.start()
	r.waitReady()
	lb.becomes("/healthz", moment, http.StatusOK)
	tests := []struct {
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
	}
	for _, tc := range tests {
		cp.send <- drainState(tc.state)
		code := http.StatusOK
		if tc.reasons != nil {
			code = http.StatusServiceUnavailable
		}
		lb.becomes("/healthz", moment, code, tc.reasons...)
		lb.stays("a drain is nothing to restart for", "/livez", http.StatusOK)
		if code, body := r.get("/readyz"); code != http.StatusOK {
			t.Errorf("%v: /readyz = %d %s, want 200: the supervisor is not asked that", tc.state, code, body)
		}
	}
	cp.stop()
	r.logged("session with the control plane ended")
	lb.stays("without a control plane", "/healthz", http.StatusServiceUnavailable, "terminating")
	cp.start()
	cp.expect(func(m *agentMessage) bool { return m.GetHello() != nil })
	lb.stays("the control plane has not said anything yet", "/healthz", http.StatusServiceUnavailable, "terminating")
	cp.stop()
	cp.set(func() { cp.features = nil })
	cp.start()
	lb.becomes("/healthz", 30*time.Second, http.StatusOK) // it could not take it back
	cp.stop()
	if err := os.WriteFile(filepath.Join(o.WorkDir, workdir.FileEnding), nil, 0o600); err != nil { // as its preStop hook does
		t.Fatal(err)
	}
	lb.becomes("/healthz", moment, http.StatusServiceUnavailable, "terminating")
}

// TestWarningsKeepLoadBalancers shows that who has no fault of its own stays in the load balancer: its name is another agent's, too, and its
// application has not answered the control plane.
func TestWarningsKeepLoadBalancers(t *testing.T) {
	t.Parallel()
	cp, o, lb := newBalanced(t, ports{})
	cp.set(func() { cp.features = append(cp.features, "endpoints") })
	cp.start()
	r := startAgent(t, o)
	r.waitReady()
	lb.becomes("/healthz", moment, http.StatusOK)
	cp.send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Duplicate{Duplicate: &agentv1.Duplicate{Address: "10.0.0.9"}}}
	cp.send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Endpoints{Endpoints: &agentv1.Endpoints{Reason: "the application is not ready"}}}
	eventually(t, 5*time.Second, func() string {
		code, body := r.get("/readyz?verbose")
		if code != http.StatusOK || !strings.Contains(body, "10.0.0.9") || !strings.Contains(body, "the application is not ready") {
			return fmt.Sprintf("/readyz = %d %s", code, body)
		}
		return ""
	})
	lb.stays("with warnings", "/healthz", http.StatusOK)
}

// TestLoadBalancersAndSupervisorsHavePortsOfTheirOwn checks that neither can be asked what is for the other: a supervisor that asks /healthz
// would restart what drains.
func TestLoadBalancersAndSupervisorsHavePortsOfTheirOwn(t *testing.T) {
	t.Parallel()
	cp, o, lb := newBalanced(t, ports{})
	cp.start()
	r := startAgent(t, o)
	r.waitReady()
	lb.becomes("/healthz", moment, http.StatusOK)
	balanced := &running{t: t, admin: net.JoinHostPort("127.0.0.1", strconv.Itoa(o.LBHealthPort))}
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
		if code, body := balanced.get(path); code != want.balancer {
			t.Errorf("the load balancer's %s = %d %s, want %d", path, code, body, want.balancer)
		}
	}
}

func TestLoadBalancerSeesTheSameAfterACrash(t *testing.T) {
	t.Parallel()
	cp, o, lb := newBalanced(t, ports{})
	cp.start()
	p, _ := startGuarded(t, cp, "--lb-health-port="+strconv.Itoa(o.LBHealthPort))
	lb.becomes("/healthz", moment, http.StatusOK)
	cp.send <- drainState(&agentv1.DrainState{Administrator: "node a: kernel"})
	lb.becomes("/healthz", moment, http.StatusServiceUnavailable, "administrator")
	p.logged("drain state") // it is stored
	cp.stop()
	p.killWorker()
	p.waitAdopted(1)
	p.waitReady()
	lb.stays("in the next worker, without a control plane", "/healthz", http.StatusServiceUnavailable, "administrator")
	cp.start()
	cp.expect(func(m *agentMessage) bool { return m.GetHello() != nil })
	cp.send <- drainState(&agentv1.DrainState{})
	lb.becomes("/healthz", moment, http.StatusOK)
	p.logged(`"draining":false`) // it is stored
	p.killWorker()
	p.waitAdopted(2)
	lb.becomes("/healthz", 30*time.Second, http.StatusOK)
}

// TestEnvoyHangs stops an Envoy: its agent starts another one, and is alive meanwhile.
func TestEnvoyHangs(t *testing.T) {
	t.Parallel()
	cp, o, lb := newBalanced(t, ports{})
	cp.start()
	r := startAgent(t, o)
	r.waitReady()
	lb.becomes("/livez", moment, http.StatusOK)
	hung := r.envoyPIDs()[0]
	if err := syscall.Kill(hung, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, 15*time.Second, func() string {
		if code, body := r.get("/livez"); code != http.StatusOK {
			t.Fatalf("/livez = %d %s", code, body)
		}
		if all := r.envoyPIDs(); len(all) < 2 {
			return fmt.Sprintf("there is still Envoy %v", all)
		}
		return ""
	})
	lb.becomes("/livez", 10*time.Second, http.StatusOK)
	lb.becomes("/healthz", 10*time.Second, http.StatusOK)
}

// TestEnvoyThatIsStartedAgain has an Envoy in back-off, which another agent would not mend.
func TestEnvoyThatIsStartedAgain(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, []byte(`{"no_such_field": 1}`))
	cp.start()
	r := startAgentOf(t, options(t, cp), dpagent.Impatient(2*time.Second))
	until := time.Now().Add(4 * time.Second)
	eventually(t, 20*time.Second, func() string {
		if code, body := r.get("/livez"); code != http.StatusOK {
			t.Fatalf("/livez = %d %s", code, body)
		}
		if time.Now().Before(until) {
			return "going on"
		}
		return ""
	})
}

func TestDrainServesOnForLoadBalancers(t *testing.T) {
	t.Parallel()
	const serves = 3 * time.Second
	tests := map[string]struct {
		change  func(*dpagent.Options)
		deleted time.Duration // so long before, the control plane says that the pod is deleted; 0: never
		min     time.Duration // until the agent ends
		max     time.Duration // that the agent sets itself to serve on: when it ends depends on the machine, too
	}{
		"told to end":    {min: serves, max: serves},
		"deleted before": {deleted: 2 * time.Second, max: serves - 2*time.Second},
		"last to end":    {change: func(o *dpagent.Options) { o.LastToEnd = true }},
		"nobody asks":    {change: func(o *dpagent.Options) { o.LBHealthPort = 0 }},
		"no time":        {change: func(o *dpagent.Options) { o.LBDrainTime = 0 }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			app := newApplication(t)
			p := ports{HTTP: freePort(t), HTTPApp: app.httpPort}
			cp, o, lb := newBalanced(t, p)
			o.LBDrainTime = serves
			if tc.change != nil {
				tc.change(&o)
			}
			cp.start()
			r := startAgent(t, o)
			r.waitReady()
			if tc.deleted > 0 {
				cp.send <- drainState(&agentv1.DrainState{Terminating: true})
				lb.becomes("/healthz", moment, http.StatusServiceUnavailable, "terminating")
				<-time.After(tc.deleted)
			}
			began := time.Now()
			r.agent.Drain()
			if o.LBHealthPort > 0 {
				if code, why := lb.ask("/healthz"); code != http.StatusServiceUnavailable || !slices.Equal(why, []string{"terminating"}) {
					t.Errorf("/healthz at once = %d %q", code, why)
				}
			}
			cp.expect(func(m *agentMessage) bool { return m.GetDraining() != nil })
			for time.Since(began) < tc.min-time.Second {
				if err := get(newClient(t), p.HTTP, "/"); err != nil {
					t.Fatalf("a new connection after %s: %v", time.Since(began), err)
				}
				<-time.After(50 * time.Millisecond)
			}
			r.waitEnd(20 * time.Second)
			if took := time.Since(began); took < tc.min {
				t.Errorf("the agent has ended after %s, want %s or more", took, tc.min)
			}
			if serves := r.servesOn(); serves > tc.max {
				t.Errorf("the agent has served on for %s, want %s at most", serves, tc.max)
			}
		})
	}
}

var servesOnField = regexp.MustCompile(`msg="drain begins" .*servesOn=(\S+)`)

// servesOn is how long the agent has said that it serves on while it drains.
func (r *running) servesOn() time.Duration {
	r.t.Helper()
	m := servesOnField.FindStringSubmatch(r.logs.String())
	if m == nil {
		r.t.Fatal("the log does not say for how long the agent serves on")
	}
	d, err := time.ParseDuration(m[1])
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

// TestSecondSignalWhileItServesOn has the control plane told at the beginning of that, and a second signal end it.
func TestSecondSignalWhileItServesOn(t *testing.T) {
	t.Parallel()
	cp, o, _ := newBalanced(t, ports{})
	o.LBDrainTime = time.Hour
	cp.start()
	r := startAgent(t, o)
	r.waitReady()
	r.agent.Drain()
	cp.expect(func(m *agentMessage) bool { return m.GetDraining() != nil })
	r.cancel()
	r.waitEnd(20 * time.Second)
}

func TestLoadBalancerPortIsTaken(t *testing.T) {
	t.Parallel()
	cp, o, _ := newBalanced(t, ports{})
	taken, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(o.LBHealthPort)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	cp.start()
	agent, err := newAgent(t, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "LBHealthPort") ||
		!strings.Contains(err.Error(), strconv.Itoa(o.LBHealthPort)) {
		t.Errorf("Run() error = %v, want one that names field and port", err)
	}
}

// TestLivezPage has the checks of an agent that answers probes, over the port of its guard.
func TestLivezPage(t *testing.T) {
	t.Parallel()
	cp, o, _ := newBalanced(t, ports{})
	cp.start()
	p, _ := startGuarded(t, cp, "--lb-health-port="+strconv.Itoa(o.LBHealthPort))
	want := []string{
		"loop-load-balancers", "loop-token", "loop-session", "loop-renewer", "loop-redirection", "loop-per-port-probes", "envoy", "probe-handler",
	}
	for _, name := range want {
		if code, body := p.get("/livez/" + name); code != http.StatusOK {
			t.Errorf("/livez/%s = %d %s", name, code, body)
		}
	}
	if err := syscall.Kill(p.cmd.Process.Pid, syscall.SIGSTOP); err != nil { // the guard has the port of the probes
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, func() string {
		code, body := p.get("/livez")
		if code == http.StatusServiceUnavailable && strings.Contains(body, "[-]probe-handler failed: ") && strings.HasPrefix(body, "[+]"+want[0]) {
			return ""
		}
		return body
	})
	if err := syscall.Kill(p.cmd.Process.Pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, func() string {
		_, body := p.get("/livez?verbose")
		for _, name := range want {
			if !strings.Contains(body, "[+]"+name+" ok\n") {
				return body
			}
		}
		return ""
	})
}
