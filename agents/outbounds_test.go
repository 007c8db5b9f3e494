package agents_test

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sonde-mesh/sonde/agents/observed"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/meshview"
)

// wantOutbounds waits for an Outbounds message, and checks it: "" means that all are accepted.
func (a *agent) wantOutbounds(want string) {
	a.h.t.Helper()
	m := next(a, "the state of its outbounds", a.outbounds)
	if m.GetAccepted() != (want == "") || !strings.Contains(m.GetReason(), want) {
		a.h.t.Fatalf("sent %v, want %q", m, want)
	}
}

// caller returns a Dataplane with an outbound, whose address Envoy binds.
func caller(inbounds ...mesh.Inbound) *mesh.Dataplane {
	d := dataplane("default", "web-1", "web")
	d.Labels = map[string]string{mesh.LabelWorkload: "web"}
	d.Spec.Networking.Inbound = inbounds
	d.Spec.Networking.Outbound = []mesh.Outbound{{Port: 10001, Tags: mesh.Tags{mesh.TagService: "api"}}}
	return d
}

// joinedCaller returns a joined agent whose Envoy has accepted no listener.
func joinedCaller(t *testing.T, d *mesh.Dataplane) (*harness, *agent) {
	h := newHarness(t, nil)
	h.put(d)
	h.synced()
	a := h.agent("web-1")
	a.envoy, a.features = nil, append(a.features, agentv1.FeatureOutbounds)
	a.mustJoin()
	return h, a
}

// TestOutboundsFollowWhatEnvoyAccepts has another program listen at the address of an outbound: the agent is informed,
// and its endpoint stays.
func TestOutboundsFollowWhatEnvoyAccepts(t *testing.T) {
	const id = "default/web-1"
	at := netip.MustParseAddrPort("127.0.0.1:10001")
	synctest.Test(t, func(t *testing.T) {
		inbound := mesh.Inbound{Port: 8080, Tags: mesh.Tags{mesh.TagService: "web"}}
		h, a := joinedCaller(t, caller(inbound))
		a.connect(false)
		a.wantOutbounds("envoy has not accepted the listener at 127.0.0.1:10001 yet")
		l := accepted("10.0.0.1:8080")
		l.Refused = map[netip.AddrPort]string{at: "cannot bind"}
		h.server.ObserveListeners(id, l)
		a.wantOutbounds("envoy refuses the listener at 127.0.0.1:10001: cannot bind")
		a.wantInbounds("has not accepted")
		a.wantInbounds("")
		h.becomes("web", meshview.Ready, meshview.NoReason)
		l = accepted("10.0.0.1:8080")
		l.Outbounds = []netip.AddrPort{at}
		h.server.ObserveListeners(id, l)
		a.wantOutbounds("")
	})
}

// TestOutboundsAfterARestart restarts the control plane while Envoy is disconnected. Then Envoy's listeners are
// unknown, unless it never had any.
func TestOutboundsAfterARestart(t *testing.T) {
	at := netip.MustParseAddrPort("127.0.0.1:10001")
	for name, tc := range map[string]struct {
		inbounds []mesh.Inbound
		before   observed.Listeners
		want     string
	}{
		"Envoy had accepted it":                  {before: observed.Listeners{Outbounds: []netip.AddrPort{at}}},
		"Envoy had accepted nothing":             {want: "has not accepted"},
		"Envoy had accepted it, and no inbounds": {[]mesh.Inbound{{Port: 8080}}, observed.Listeners{Outbounds: []netip.AddrPort{at}}, "has not accepted"},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			h, a := joinedCaller(t, caller(tc.inbounds...))
			h.server.ObserveListeners("default/web-1", tc.before)
			h.restart()
			h.put(caller(tc.inbounds...))
			h.synced()
			a.connect(false)
			if tc.want != "" {
				a.wantOutbounds(tc.want)
				return
			}
			synctest.Wait()
			if len(a.outbounds) > 0 {
				t.Errorf("sent %v, although nothing is known", <-a.outbounds)
			}
		})
	}
}
