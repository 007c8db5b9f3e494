package facts_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/facts"
)

// TestBounds has another replica report an impossible value about a proxy, in each field.
func TestBounds(t *testing.T) {
	long, none := strings.Repeat("x", 513), &peerv1.Order{Time: -1}
	longReason := map[string]string{"10.0.0.1:80": strings.Repeat("x", 1025)}
	many := make([]string, 10_001)
	for i := range many {
		many[i] = fmt.Sprintf("10.0.0.1:%d", i)
	}
	wrongTime := &timestamppb.Timestamp{Nanos: -1}
	said := func(m *agentv1.Liveness) *peerv1.Proxy { return &peerv1.Proxy{Liveness: &peerv1.Liveness{Said: m}} }
	session := func(m *peerv1.Session) *peerv1.Proxy { return &peerv1.Proxy{Session: m} }
	tests := map[string][]*peerv1.Proxy{
		"proxy.id":                           {{Id: "web"}, {Id: "default/" + long}},
		"proxy.instance":                     {{Instance: long}},
		"proxy.certificate":                  {{Certificate: &peerv1.Certificate{Serial: long}}, {Certificate: &peerv1.Certificate{Ca: long}}, {Certificate: &peerv1.Certificate{Path: long}}},
		"proxy.certificate.not_after":        {{Certificate: &peerv1.Certificate{NotAfter: wrongTime}}},
		"proxy.session.order":                {session(&peerv1.Session{Order: none})},
		"proxy.session.since":                {session(&peerv1.Session{Since: wrongTime})},
		"proxy.session.ended":                {session(&peerv1.Session{Ended: wrongTime})},
		"proxy.session.features":             {session(&peerv1.Session{Features: make([]string, 33)}), session(&peerv1.Session{Features: []string{long}})},
		"proxy.applications.order":           {{Applications: &peerv1.Applications{Order: none}}},
		"proxy.applications.not_serving":     {{Applications: &peerv1.Applications{NotServing: map[string]string{"x": ""}}}, {Applications: &peerv1.Applications{NotServing: longReason}}},
		"proxy.listeners.order":              {{Listeners: &peerv1.Listeners{Order: none}}},
		"proxy.listeners.accepted":           {{Listeners: &peerv1.Listeners{Accepted: []string{"x"}}}, {Listeners: &peerv1.Listeners{Accepted: many}}},
		"proxy.listeners.refused":            {{Listeners: &peerv1.Listeners{Refused: map[string]string{"x": ""}}}, {Listeners: &peerv1.Listeners{Refused: longReason}}},
		"proxy.listeners.outbounds.accepted": {{Listeners: &peerv1.Listeners{Outbounds: &peerv1.Outbounds{Accepted: []string{"x"}}}}, {Listeners: &peerv1.Listeners{Outbounds: &peerv1.Outbounds{Accepted: many}}}},
		"proxy.liveness.order":               {{Liveness: &peerv1.Liveness{Order: &peerv1.Order{Count: -1}}}},
		"proxy.liveness.said": {
			said(&agentv1.Liveness{Held: make([]*agentv1.HeldLiveness, agentv1.MaxReported+1)}), said(&agentv1.Liveness{Passing: make([]string, agentv1.MaxReported+1)}),
			said(&agentv1.Liveness{Unused: make([]string, agentv1.MaxReported+1)}), said(&agentv1.Liveness{Passing: []string{long}}), said(&agentv1.Liveness{Unused: []string{long}}),
			said(&agentv1.Liveness{Held: []*agentv1.HeldLiveness{{Container: long}}}), said(&agentv1.Liveness{Held: []*agentv1.HeldLiveness{{Reason: long}}}),
			said(&agentv1.Liveness{Held: []*agentv1.HeldLiveness{{Grant: long}}}),
		},
		"proxy.liveness.said.failing": {said(&agentv1.Liveness{Held: []*agentv1.HeldLiveness{{Failing: &durationpb.Duration{Nanos: -1, Seconds: 1}}}})},
		"proxy.plaintext.order":       {{Plaintext: &peerv1.Plaintext{Order: none}}},
		"proxy.plaintext.process":     {{Plaintext: &peerv1.Plaintext{Process: long}}},
		"proxy.plaintext.said":        {{Plaintext: &peerv1.Plaintext{Said: &agentv1.Plaintext{Inbounds: []*agentv1.PlaintextInbound{{Port: 1 << 16}}}}}},
		"proxy.verdicts.order":        {{Verdicts: &peerv1.Verdicts{Order: none}}},
		"proxy.verdicts.said":         {{Verdicts: &peerv1.Verdicts{Said: &agentv1.Verdicts{Probes: make([]*agentv1.ProbeVerdicts, agentv1.MaxProbes+1)}}}},
		"proxy.verdicts.said.reason":  {{Verdicts: &peerv1.Verdicts{Said: &agentv1.Verdicts{Probes: []*agentv1.ProbeVerdicts{{Container: "app", Probe: "liveness", Reason: long[:129]}}}}}},
		"proxy.waiting.since":         {{Waiting: &peerv1.Waiting{Since: wrongTime}}},
		"proxy.waiting.reason":        {{Waiting: &peerv1.Waiting{Reason: longReason["10.0.0.1:80"]}}},
	}
	for _, text := range []*peerv1.Session{
		{Process: long}, {Address: long}, {Version: long}, {EnvoyVersion: long}, {EnvoyDown: long}, {BundleId: long}, {ServingCaId: long},
	} {
		tests["proxy.session"] = append(tests["proxy.session"], session(text))
	}
	for field, bad := range tests {
		t.Run(field, func(t *testing.T) {
			for _, m := range bad {
				if m.GetId() == "" {
					m.Id = "default/web"
				}
				if err := facts.CheckProxy(m); err == nil || !strings.HasPrefix(err.Error(), field+": ") {
					t.Errorf("CheckProxy() = %v, want an error of %s", err, field)
				}
			}
		})
	}
	if err := facts.CheckProxy(&peerv1.Proxy{Id: "default/web"}); err != nil {
		t.Errorf("a proxy of which nothing is said is refused: %v", err)
	}
}
