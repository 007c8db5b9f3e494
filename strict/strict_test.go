package strict

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

func TestGapOf(t *testing.T) {
	counts := []string{agentv1.FeaturePong, agentv1.FeaturePlaintext, agentv1.FeatureAskPlaintext}
	at := func(second int64, records bool) *adminv1.Stream {
		return &adminv1.Stream{ConnectedSince: &timestamppb.Timestamp{Seconds: second}, Records: records}
	}
	records := []*adminv1.Stream{at(1, true)}
	const unrecorded = "its Envoy was started when its agent, or the control plane, was too old to record plaintext: restart it"
	tests := map[string]struct {
		tells   bool
		silent  bool // it has not answered now
		agent   *adminv1.Agent
		phase   adminv1.AgentState_Phase
		streams []*adminv1.Stream
		want    string
	}{
		"it tells":            {tells: true, agent: &adminv1.Agent{Features: counts}, streams: records},
		"no stream":           {tells: true, agent: &adminv1.Agent{Features: counts}, want: "its Envoy is not connected"},
		"an Envoy of before":  {tells: true, agent: &adminv1.Agent{Features: counts}, streams: []*adminv1.Stream{at(1, false)}, want: unrecorded},
		"another Envoy since": {tells: true, agent: &adminv1.Agent{Features: counts}, streams: []*adminv1.Stream{at(2, true), at(1, false)}},
		"as before again":     {tells: true, agent: &adminv1.Agent{Features: counts}, streams: []*adminv1.Stream{at(2, false), at(1, true)}, want: unrecorded},
		"an old agent":        {agent: &adminv1.Agent{Version: "0.1.0"}, want: "its agent of version 0.1.0 is too old to count plaintext: restart it with a newer one"},
		"one that was newer":  {tells: true, agent: &adminv1.Agent{Version: "0.1.0"}, want: "its agent of version 0.1.0 is too old to count plaintext: restart it with a newer one"},
		"a moment ago":        {agent: &adminv1.Agent{Features: counts}, streams: records, want: "its agent has just connected, and has not reported its counts yet"},
		"without its Envoy":   {tells: true, agent: &adminv1.Agent{Features: counts, EnvoyDown: "exit status 1"}, want: "its Envoy does not run: exit status 1"},
		"does not answer":     {tells: true, silent: true, agent: &adminv1.Agent{Features: counts}, streams: records, want: "its agent was asked and has not answered: traffic since its last report is unknown"},
		"cannot be asked": {
			tells: true, silent: true, agent: &adminv1.Agent{Version: "0.2.0", Features: counts[:2]}, streams: records,
			want: "its agent of version 0.2.0 is too old to be asked, and reports its counts once a minute: traffic since then is unknown",
		},
		"never joined":         {phase: adminv1.AgentState_NEVER_JOINED, want: "its agent has never joined"},
		"waits":                {phase: adminv1.AgentState_WAITING, want: "its agent waits to join: bad token"},
		"lost, and has told":   {tells: true, phase: adminv1.AgentState_LOST, want: "its agent is not connected"},
		"lost, and not told":   {phase: adminv1.AgentState_LOST, want: "its agent is not connected"},
		"it may yet come back": {tells: true, phase: adminv1.AgentState_RECONNECTING, want: "its agent is not connected"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := gapOf(tc.tells, !tc.silent, tc.agent, &adminv1.AgentState{Phase: tc.phase, Refusal: "bad token"}, newest(tc.streams)); got != tc.want {
				t.Errorf("gapOf() = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestOwnersIn(t *testing.T) {
	b := meshview.NewBuilder(meshview.Options{Sources: []string{"test"}})
	add := func(meshName, name, address, instance string) {
		d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: meshName, Name: name, Labels: map[string]string{mesh.LabelWorkload: "w"}}, Identity: mesh.Identity{Instance: instance}}
		d.Spec.Networking.Address = address
		d.SetDefaults()
		b.Set("test", d)
	}
	for _, name := range []string{"default", "shop"} {
		b.Set("test", &mesh.Mesh{Name: name})
	}
	add("default", "web-1", "10.0.0.1", "")
	add("shop", "db-1", "10.0.0.1", "")
	add("default", "vm", "10.0.0.2", "")
	add("default", "web.shop", "10.0.0.3", "u-1")
	add("default", "local", "127.0.0.1", "")
	add("default", "unasked", "10.0.0.9", "")
	b.Synced("test")
	change, _ := b.Build()
	asked := map[netip.Addr]bool{}
	for _, from := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "127.0.0.1", "127.0.9.9", "::1"} {
		asked[netip.MustParseAddr(from)] = true
	}
	want := map[string]owner{
		"10.0.0.1":  {machine: true, sharing: []mesh.ID{"default/web-1", "shop/db-1"}},
		"10.0.0.2":  {mesh: "default", dataplane: "vm", workload: "w", machine: true},
		"10.0.0.3":  {mesh: "default", dataplane: "web.shop", workload: "w"},
		"127.0.0.1": {machine: true}, "127.0.9.9": {machine: true}, "::1": {machine: true},
	}
	got := map[string]owner{}
	for from, o := range ownersIn(change.After, asked) {
		got[from.String()] = o
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(owner{}, Pod{})); diff != "" {
		t.Errorf("ownersIn() (-want +got):\n%s", diff)
	}
}

func TestSenderOf(t *testing.T) {
	seen := time.Date(2026, 11, 27, 14, 0, 0, 0, time.UTC)
	pod := func(name string, started time.Duration, hostNetwork bool) corev1.Pod {
		at := metav1.NewTime(seen.Add(started))
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.PodSpec{NodeName: "worker-1", HostNetwork: hostNetwork}, Status: corev1.PodStatus{StartTime: &at},
		}
	}
	tests := map[string]struct {
		pods []corev1.Pod
		want Pod
	}{
		"none":                                  {},
		"the pod":                               {[]corev1.Pod{pod("a", -time.Hour, false)}, Pod{"shop/a", "worker-1"}},
		"a pod that is not bound":               {[]corev1.Pod{{}}, Pod{}},
		"one that has got the address since":    {[]corev1.Pod{pod("b", time.Minute, false)}, Pod{}},
		"the clock of its node is ahead":        {[]corev1.Pod{pod("a", 3*time.Second, false)}, Pod{"shop/a", "worker-1"}},
		"the one that had it last":              {[]corev1.Pod{pod("old", -time.Hour, false), pod("a", -time.Minute, false), pod("new", time.Minute, false)}, Pod{"shop/a", "worker-1"}},
		"pods that share the address of a node": {[]corev1.Pod{pod("proxy", -time.Hour, true), pod("cni", -2*time.Hour, true)}, Pod{"", "worker-1"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got, ok := senderOf(tc.pods, seen); got != tc.want || ok != (tc.want != Pod{}) {
				t.Errorf("senderOf() = %+v, %t, want %+v", got, ok, tc.want)
			}
		})
	}
}
