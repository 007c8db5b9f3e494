package dashboard

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// TestProbeTextsOfPods has a finding of each kind. It shows what the control plane knows of the probe.
func TestProbeTextsOfPods(t *testing.T) {
	text := func(container, probe, agent string) *adminv1.ProbeText {
		return &adminv1.ProbeText{Container: container, Probe: probe, Written: "written", Kubelet: "kubelet", Agent: agent}
	}
	liveness := func(w *Workload) *Cell { return w.Liveness }
	readiness := func(w *Workload) *Cell { return w.Readiness }
	tests := map[string]struct {
		verdicts []*adminv1.ProbeVerdicts
		texts    []*adminv1.ProbeText
		change   func(*fakeAPI)
		cell     func(*Workload) *Cell
		want     [3]string
	}{
		"reported": {
			[]*adminv1.ProbeVerdicts{verdict("app", "liveness", "success", "")}, []*adminv1.ProbeText{text("app", "startup", "other"), text("app", "liveness", "agent")}, nil,
			liveness, [3]string{"written", "kubelet", "agent"},
		},
		"of another container": {
			[]*adminv1.ProbeVerdicts{verdict("app", "liveness", "success", "")}, []*adminv1.ProbeText{text("db", "startup", "agent")}, nil, liveness, [3]string{},
		},
		"of another release": {
			[]*adminv1.ProbeVerdicts{verdict("app", "liveness", "success", "")}, nil, func(a *fakeAPI) { a.dataplanes[0].PodState, a.probeSets = nil, nil }, liveness, [3]string{},
		},
		"left out": {
			[]*adminv1.ProbeVerdicts{verdict("app", "liveness", "success", "")}, nil, func(a *fakeAPI) { a.probeSets = nil }, liveness, [3]string{},
		},
		"a restart": {
			nil, []*adminv1.ProbeText{text("app", "liveness", "agent")},
			func(a *fakeAPI) {
				a.restarts.Restarts = []*adminv1.Restart{{Namespace: "shop", Pod: "web-5d9c7b8f6d-x2x4z", Container: "app"}}
			}, liveness, [3]string{"written", "kubelet", "agent"},
		},
		"it cannot fail": {
			nil, []*adminv1.ProbeText{text("app", "liveness", "")},
			func(a *fakeAPI) {
				a.dataplanes[0].PodState.Unfailing = []*adminv1.UnfailingProbe{{Container: "app", Probe: "liveness", Port: 80}}
			}, liveness, [3]string{"written", "kubelet", "nothing: Envoy answers"},
		},
		"the kubelet alone": {nil, []*adminv1.ProbeText{text("app", "readiness", "")}, nil, readiness, [3]string{"written", "kubelet", notAnswered}},
		"the kubelet alone, of two": {
			nil, []*adminv1.ProbeText{text("app", "readiness", ""), text("db", "readiness", "")}, nil, readiness, [3]string{},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			api := podAPI(adminv1.Endpoint_READY, tc.verdicts...)
			api.dataplanes[0].PodState = &adminv1.PodState{Ready: true, Created: timestamppb.New(at), ProbeSet: 7}
			api.probeSets = []*adminv1.ProbeSet{{Id: 5, Probes: []*adminv1.ProbeText{{Container: "app", Probe: "liveness", Written: "of another pod"}}}, {Id: 7, Probes: tc.texts}}
			if tc.change != nil {
				tc.change(api)
			}
			f := tc.cell(workloads(t, api).Rows[0]).Findings[0]
			if diff := cmp.Diff(tc.want, [3]string{f.Probe, f.Kubelet, f.Asks}); diff != "" {
				t.Errorf("the finding is %+v (-want +got):\n%s", f, diff)
			}
		})
	}
}

// A probe that the pod has is not "no probe", although nothing reports its verdict.
func TestProbesWithoutVerdict(t *testing.T) {
	for name, tc := range map[string]struct {
		agent  string
		change func(*fakeAPI)
		want   []string
	}{
		"the kubelet asks itself":    {"", nil, []string{"app: not reported: " + native}},
		"not in the report":          {"agent", nil, []string{"app: not reported: " + notInReport}},
		"the agent is not connected": {"agent", func(a *fakeAPI) { a.proxies[0].AgentState = nil }, nil},
		"the agent reports the probe": {"agent", func(a *fakeAPI) {
			a.proxies[0].Verdicts.Probes = append(a.proxies[0].Verdicts.Probes, verdict("app", "liveness", "success", ""))
		}, []string{"app: passing: "}},
	} {
		t.Run(name, func(t *testing.T) {
			api := podAPI(adminv1.Endpoint_READY, verdict("app", "readiness", "success", ""))
			api.dataplanes[0].PodState = &adminv1.PodState{Ready: true, Created: timestamppb.New(at), ProbeSet: 7}
			api.probeSets = []*adminv1.ProbeSet{{Id: 7, Probes: []*adminv1.ProbeText{{Container: "app", Probe: "liveness", Written: "written", Kubelet: "kubelet", Agent: tc.agent}}}}
			if tc.change != nil {
				tc.change(api)
			}
			var got []string
			for _, f := range workloads(t, api).Rows[0].Liveness.Findings {
				got = append(got, f.Container+": "+string(f.State)+": "+f.Reason)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

// The texts of a pod as the control plane reads it.
func TestProbeTextsOfACluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster{"namespaces": {}, "nodes": {node("seen", "well", corev1.ConditionTrue)}}
		c.addPod("web", true, func(p *corev1.Pod) {
			p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(8080)}}}
		})
		found := workloads(t, c.read(t))
		const want = "httpGet :8080 /ready every 10s, timeout 1s, fails after 3"
		if f := found.Rows[0].Readiness.Findings[0]; f.Probe != want || f.Kubelet != want || f.Asks != notAnswered {
			t.Errorf("the finding is %+v", f)
		}
	})
}

func TestSnapshotHasProbeTexts(t *testing.T) {
	api := podAPI(adminv1.Endpoint_READY, verdict("app", "liveness", "failure", "refused"))
	api.dataplanes[0].PodState = &adminv1.PodState{Ready: true, Created: timestamppb.New(at), ProbeSet: 7}
	api.probeSets = []*adminv1.ProbeSet{{Id: 7, Probes: []*adminv1.ProbeText{{Container: "app", Probe: "liveness", Written: "GET </a>", Kubelet: "virtual", Agent: "its own"}}}}
	page := snapshotOf(t, api)
	for _, want := range []string{"Probe as written: <code>GET &lt;/a&gt;</code>", "The kubelet asks: <code>virtual</code>", "The agent asks: <code>its own</code>"} {
		if !strings.Contains(page, want) {
			t.Errorf("it lacks %q:\n%s", want, page)
		}
	}
}
