package agents_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sonde-mesh/sonde/agents"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/meshview"
)

// askedApplications waits for a ServiceProbes message.
func (a *agent) askedApplications() *agentv1.ServiceProbes {
	a.h.t.Helper()
	return next(a, "how to ask the applications", a.serviceProbes)
}

// reportApplications reports the state of inbounds, as "<ip:port> <reason>", or "<ip:port>" for a ready one.
func (a *agent) reportApplications(inbounds ...string) {
	a.h.t.Helper()
	m := &agentv1.Readiness{}
	for _, text := range inbounds {
		at, reason, failed := strings.Cut(text, " ")
		m.Inbounds = append(m.Inbounds, &agentv1.InboundReadiness{Inbound: at, Ready: !failed, Reason: reason})
	}
	a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Readiness{Readiness: m}})
}

// heard waits until all messages of the agent were handled, which happens in order within a session.
func (a *agent) heard() {
	a.h.t.Helper()
	const unknown = "sonde_agents_unknown_messages_total"
	before := a.h.metric(unknown, "")
	a.send(&agentv1.AgentMessage{})
	a.h.eventually("the messages are handled", func() bool { return a.h.metric(unknown, "") > before })
}

// why waits until NotServing returns these reasons for web-1, by address.
func (h *harness) why(want map[string]string) {
	h.t.Helper()
	h.until("NotServing() (-want +got)", func() error {
		got := map[string]string{}
		for at, reason := range h.server.NotServing("default/web-1") {
			got[at.String()] = reason
		}
		return different(cmp.Diff(want, got))
	})
}

// withProbe returns web-1 with a serviceProbe on its inbound 8080, changed by change.
func withProbe(change func(*mesh.Dataplane)) *mesh.Dataplane {
	d := dataplane("default", "web-1", "web")
	d.Spec.Networking.Inbound[0].ServicePort = 18080
	d.Spec.Networking.Inbound[0].ServiceProbe = &mesh.ServiceProbe{}
	change(d)
	return d
}

// joinedWithProbe starts a control plane with withProbe, whose agent has joined and whose Envoy has accepted the
// inbound.
func joinedWithProbe(t *testing.T, bend func(*agents.Options)) (*harness, *agent) {
	t.Helper()
	h := newHarness(t, bend)
	h.put(withProbe(same))
	h.synced()
	a := h.agent("web-1")
	a.mustJoin()
	return h, a
}

const (
	failed      = "application probe failed: "
	notReported = "the agent has not reported its application yet"
	web         = "10.0.0.1:8080"
)

func TestServiceProbesOfADataplane(t *testing.T) {
	second, timeout := durationpb.New(time.Second), durationpb.New(2*time.Second)
	tests := map[string]struct {
		change func(*mesh.Dataplane)
		want   []*agentv1.ServiceProbe
	}{
		"none": {func(d *mesh.Dataplane) { d.Spec.Networking.Inbound[0].ServiceProbe = nil }, nil},
		"tcp": {same, []*agentv1.ServiceProbe{{
			Inbound: web, Application: "127.0.0.1:18080", Handler: &agentv1.ServiceProbe_TcpSocket{TcpSocket: &agentv1.ServiceProbe_TCPSocket{}},
			Period: second, Timeout: timeout, FailureThreshold: 1, SuccessThreshold: 1,
		}}},
		"an ignored inbound at the same port": {func(d *mesh.Dataplane) {
			in := &d.Spec.Networking.Inbound[0]
			ignored := mesh.Inbound{Port: in.Port, ServicePort: 9, State: mesh.InboundIgnored, ServiceProbe: &mesh.ServiceProbe{}, Tags: in.Tags}
			d.Spec.Networking.Inbound = append(d.Spec.Networking.Inbound, ignored)
		}, []*agentv1.ServiceProbe{{
			Inbound: web, Application: "127.0.0.1:18080", Handler: &agentv1.ServiceProbe_TcpSocket{TcpSocket: &agentv1.ServiceProbe_TCPSocket{}},
			Period: second, Timeout: timeout, FailureThreshold: 1, SuccessThreshold: 1,
		}}},
		"httpGet": {func(d *mesh.Dataplane) {
			d.Spec.Networking.Inbound[0].ServiceProbe = &mesh.ServiceProbe{
				HTTPGet:       &mesh.HTTPGetProbe{Path: "/healthz", Port: 9, Scheme: mesh.SchemeHTTPS, HTTPHeaders: []mesh.HTTPHeader{{Name: "A", Value: "b"}}},
				PeriodSeconds: 1, TimeoutSeconds: 2, FailureThreshold: 4, SuccessThreshold: 5,
			}
		}, []*agentv1.ServiceProbe{{
			Inbound: web, Application: "127.0.0.1:9",
			Handler: &agentv1.ServiceProbe_HttpGet{HttpGet: &agentv1.ServiceProbe_HTTPGet{
				Path: "/healthz", Https: true, Headers: []*agentv1.ServiceProbe_Header{{Name: "A", Value: "b"}},
			}},
			Period: second, Timeout: timeout, FailureThreshold: 4, SuccessThreshold: 5,
		}}},
		"grpc, with redirection and IPv6": {func(d *mesh.Dataplane) {
			d.Spec.Networking.Address, d.Spec.Networking.TransparentProxying = "fd00::1", &mesh.TransparentProxying{}
			d.Spec.Networking.Inbound[0].ServicePort = 0
			d.Spec.Networking.Inbound[0].ServiceProbe = &mesh.ServiceProbe{GRPC: &mesh.GRPCProbe{Service: "db"}, PeriodSeconds: 1, TimeoutSeconds: 2}
		}, []*agentv1.ServiceProbe{{
			Inbound: "[fd00::1]:8080", Application: "[fd00::1]:8080",
			Handler: &agentv1.ServiceProbe_Grpc{Grpc: &agentv1.ServiceProbe_GRPC{Service: "db"}},
			Period:  second, Timeout: timeout, FailureThreshold: 3, SuccessThreshold: 1,
		}}},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			h, a := joined(t, nil)
			a.connect(false)
			if m := a.askedApplications(); len(m.GetProbes()) != 0 {
				t.Fatalf("sent %v without a probe", m)
			}
			if tc.want == nil {
				return
			}
			h.put(withProbe(tc.change))
			if diff := cmp.Diff(tc.want, a.askedApplications().GetProbes(), protocmp.Transform()); diff != "" {
				t.Errorf("service probes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestApplicationOfAProxyThatHasJustJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joinedWithProbe(t, nil)
		h.becomes("web", meshview.NotReady, meshview.ApplicationNotReady)
		h.why(map[string]string{web: notReported})
		a.connect(false)
		a.askedApplications()
		a.reportApplications(web + " HTTP probe failed with statuscode: 500")
		h.why(map[string]string{web: failed + "HTTP probe failed with statuscode: 500"})
		h.becomes("web", meshview.NotReady, meshview.ApplicationNotReady)
		a.reportApplications(web)
		h.becomes("web", meshview.Ready, meshview.NoReason)
		h.why(map[string]string{})
		h.eventually("the line of the log", func() bool { return len(h.log.Lines("application ready", "inbound="+web)) > 0 }) // after the change
		if lines := h.log.Lines("application ready", "inbound="+web); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
	})
}

// TestLastReportHolds breaks the session and restarts the control plane.
func TestLastReportHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joinedWithProbe(t, nil)
		restart := func() {
			h.restart()
			h.put(withProbe(same))
			h.synced()
		}
		restart()
		h.becomes("web", meshview.NotReady, meshview.ApplicationNotReady)
		h.why(map[string]string{web: notReported})

		a.connect(false)
		a.reportApplications(web)
		h.becomes("web", meshview.Ready, meshview.NoReason)
		a.leave()
		restart()
		h.becomes("web", meshview.Ready, meshview.NoReason)

		a.connect(false)
		a.reportApplications(web + " refused")
		h.becomes("web", meshview.NotReady, meshview.ApplicationNotReady)
		a.leave()
		h.why(map[string]string{web: failed + "refused"})
		restart()
		h.becomes("web", meshview.NotReady, meshview.ApplicationNotReady)
		h.why(map[string]string{web: failed + "refused"})

		a.connect(false) // it has not reported yet
		a.askedApplications()
		h.why(map[string]string{web: failed + "refused"})
		a.reportApplications(web)
		h.becomes("web", meshview.Ready, meshview.NoReason)
	})
}

// TestAgentThatHasDrainedStartsAgain has the agent exit and start again, as after a reboot.
func TestAgentThatHasDrainedStartsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joinedWithProbe(t, nil)
		a.connect(false)
		a.reportApplications(web)
		h.becomes("web", meshview.Ready, meshview.NoReason)
		a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Draining{Draining: &agentv1.Draining{}}})
		h.becomes("web", meshview.Draining, meshview.NoReason)
		a.leave()
		a.connect(true) // it reconnects while it drains
		h.becomes("web", meshview.Draining, meshview.NoReason)
		a.leave()
		a.connect(false)
		h.becomes("web", meshview.NotReady, meshview.ApplicationNotReady)
		h.why(map[string]string{web: notReported})
		a.reportApplications(web)
		h.becomes("web", meshview.Ready, meshview.NoReason)
	})
}

// TestReportBeforeTheFirstView has reports arrive while the restarted control plane has no Dataplanes yet: it asks the
// agent to repeat them.
func TestReportBeforeTheFirstView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joinedWithProbe(t, nil)
		a.connect(false)
		a.reportApplications(web)
		h.becomes("web", meshview.Ready, meshview.NoReason)
		a.leave()
		h.restart()
		a.connect(false)
		a.reportApplications(web + " refused")
		a.heard()
		h.put(withProbe(same))
		h.synced()
		h.becomes("web", meshview.Ready, meshview.NoReason) // from the report before the restart
		a.askedApplications()
		a.reportApplications(web + " refused")
		h.becomes("web", meshview.NotReady, meshview.ApplicationNotReady)

		h.delete("web-1")
		a.reportApplications(web)
		a.heard()
		h.put(withProbe(same))
		if m := a.askedApplications(); len(m.GetProbes()) != 1 {
			t.Errorf("sent %v", m)
		}
		h.becomes("web", meshview.NotReady, meshview.ApplicationNotReady)
	})
}

// TestProbeOfAnInboundThatServes adds a probe to an inbound that serves, as a change of all replicas of a service does,
// and adds an inbound.
func TestProbeOfAnInboundThatServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joined(t, nil)
		a.connect(false)
		h.becomes("web", meshview.Ready, meshview.NoReason)
		h.put(withProbe(func(d *mesh.Dataplane) {
			d.Spec.Networking.Inbound = append(d.Spec.Networking.Inbound, mesh.Inbound{
				Port: 9090, Tags: mesh.Tags{mesh.TagService: "more"}, ServiceProbe: &mesh.ServiceProbe{},
			})
		}))
		h.server.ObserveListeners("default/web-1", accepted(web, "10.0.0.1:9090"))
		h.why(map[string]string{"10.0.0.1:9090": notReported})
		h.becomes("more", meshview.NotReady, meshview.ApplicationNotReady)
		h.becomes("web", meshview.Ready, meshview.NoReason)
		a.reportApplications(web+" refused", "10.0.0.1:9090")
		h.becomes("web", meshview.NotReady, meshview.ApplicationNotReady)
		h.becomes("more", meshview.Ready, meshview.NoReason)

		h.put(dataplane("default", "web-1", "web")) // without its probe
		h.becomes("web", meshview.Ready, meshview.NoReason)
		h.why(map[string]string{})
		h.put(withProbe(same))
		h.becomes("web", meshview.Ready, meshview.NoReason)
	})
}

// TestAgentThatIsTooOld has an agent that never reports, so that its inbounds must not wait for a report.
func TestAgentThatIsTooOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joinedWithProbe(t, nil)
		h.becomes("web", meshview.NotReady, meshview.ApplicationNotReady)
		a.features = nil
		a.connect(false)
		h.becomes("web", meshview.Ready, meshview.NoReason)
		h.put(withProbe(func(d *mesh.Dataplane) {
			d.Spec.Networking.Inbound = append(d.Spec.Networking.Inbound, mesh.Inbound{
				Port: 9090, Tags: mesh.Tags{mesh.TagService: "more"}, ServiceProbe: &mesh.ServiceProbe{},
			})
		}))
		h.server.ObserveListeners("default/web-1", accepted(web, "10.0.0.1:9090"))
		h.becomes("more", meshview.Ready, meshview.NoReason)
		if len(a.serviceProbes) > 0 {
			t.Errorf("sent %v", <-a.serviceProbes)
		}
		if lines := h.log.Lines("level=WARN", "agent is too old for serviceProbe", "health.ready alone decides"); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
		a.leave() // it is upgraded
		a.features = []string{"service-probes"}
		a.connect(false)
		a.askedApplications()
		a.reportApplications(web + " refused")
		h.becomes("web", meshview.NotReady, meshview.ApplicationNotReady)
	})
}

func TestReadinessThatIsWrong(t *testing.T) {
	many := make([]string, 21)
	for i := range many {
		many[i] = fmt.Sprint("10.0.0.1:", 1000+i)
	}
	tests := map[string]struct {
		inbounds []string
		want     string
	}{
		"too many":      {many, "readiness: 21 inbounds, must be at most 20"},
		"no address":    {[]string{""}, `readiness: inbound: "": must be ip:port`},
		"a name":        {[]string{"web:80"}, `readiness: inbound: "web:80": must be ip:port`},
		"a long string": {[]string{strings.Repeat("x", 10000)}, `readiness: inbound: "` + strings.Repeat("x", 64) + `": must be ip:port`},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			_, a := joinedWithProbe(t, nil)
			a.connect(false)
			a.reportApplications(tc.inbounds...)
			wantStatus(t, a.ending(), codes.InvalidArgument, tc.want)
		})
	}
}

// TestReadinessOfOthersIsIgnored reports inbounds without a probe, and a reason that is too long.
func TestReadinessOfOthersIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joinedWithProbe(t, nil)
		h.put(dataplane("default", "web-2", "web"))
		a.connect(false)
		a.reportApplications("10.0.0.1:9090 refused", "10.0.0.2:8080 refused")
		a.reportApplications(web + " " + strings.Repeat("x", 1000))
		h.why(map[string]string{web: failed + strings.Repeat("x", 512)})
		a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Readiness{}}) // without inbounds
		a.reportApplications(web)
		h.why(map[string]string{})
	})
}
