package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// dials gives the container app a tcpSocket probe.
func dials(port intstr.IntOrString, host string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port, Host: host}}}
	}
}

// TestUnfailing has probes as written: Envoy answers a tcpSocket probe of a redirected port.
func TestUnfailing(t *testing.T) {
	number := intstr.FromInt32
	disabled := annotated(mesh.AnnotationVirtualProbes, "disabled")
	tests := map[string]struct {
		options []func(*corev1.Pod)
		want    string // of the reason, "" for a probe that may fail
	}{
		"virtual probes are disabled": {[]func(*corev1.Pod){dials(number(8080), ""), disabled}, "remove the annotation kuma.io/virtual-probes"},
		"a port that is not declared": {[]func(*corev1.Pod){dials(number(9999), ""), disabled}, "connection to port 9999"},
		"a named port": {[]func(*corev1.Pod){dials(intstr.FromString("db"), ""), disabled, func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "db", ContainerPort: 5432}}
		}}, "connection to port 5432"},
		"an unknown name":    {[]func(*corev1.Pod){dials(intstr.FromString("db"), ""), disabled}, ""},
		"another host":       {[]func(*corev1.Pod){dials(number(8080), "192.0.2.7"), disabled}, ""},
		"an excluded port":   {[]func(*corev1.Pod){dials(number(8080), ""), disabled, excludes("8080")}, ""},
		"a gateway":          {[]func(*corev1.Pod){dials(number(8080), ""), disabled, gateway}, ""},
		"no probe":           {[]func(*corev1.Pod){disabled}, ""},
		"without annotation": {[]func(*corev1.Pod){dials(number(8080), "")}, "create the pod again"},
		"it starts before the agent": {[]func(*corev1.Pod){dials(number(8080), ""), func(p *corev1.Pod) {
			native := p.Spec.Containers[0]
			native.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
			p.Spec.InitContainers, p.Spec.Containers = []corev1.Container{native}, p.Spec.InitContainers
		}}, "set sidecarForm to native"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r, _ := readPod(pod("web", "1", "10.0.0.1", tc.options...))
			if tc.want == "" {
				if r.Unfailing != nil {
					t.Errorf("%+v cannot fail", r.Unfailing)
				}
				return
			}
			if len(r.Unfailing) != 1 || r.Unfailing[0].Container != "app" || r.Unfailing[0].Probe != mesh.ProbeLiveness || !strings.Contains(r.Unfailing[0].Reason, tc.want) {
				t.Errorf("found %+v, want %q", r.Unfailing, tc.want)
			}
		})
	}
}

// TestUnfailingAsInjected has pods as the webhook writes them. It warns of the same probes.
func TestUnfailingAsInjected(t *testing.T) {
	files, err := filepath.Glob("../../testdata/inject/*/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var p corev1.Pod
		if err := yaml.Unmarshal(text, &p); err != nil {
			t.Fatal(err)
		}
		r, injected := readPod(&p)
		if !injected {
			continue
		}
		found += len(r.Unfailing)
		if want := strings.Count(p.Annotations[mesh.AnnotationInjectionWarnings], "so this probe never fails"); len(r.Unfailing) != want {
			t.Errorf("%s: %+v cannot fail, the webhook warned of %d", file, r.Unfailing, want)
		}
	}
	if found == 0 {
		t.Error("no pod has a probe that cannot fail")
	}
}

func TestStateOf(t *testing.T) {
	s := newSynced(t, newRecorder(), pod("web", "1", "10.0.0.1", dials(intstr.FromInt32(8080), ""), func(p *corev1.Pod) {
		p.CreationTimestamp = metav1.Unix(1e9, 0)
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}))
	want := &adminv1.PodState{Ready: true, Created: timestamppb.New(time.Unix(1e9, 0)), Unfailing: []*adminv1.UnfailingProbe{{
		Container: "app", Probe: "liveness", Port: 8080,
		Reason: "Envoy accepts each connection to port 8080, whether the application listens or not: create the pod again, so that the agent answers the probe, or add the port to traffic.kuma.io/exclude-inbound-ports",
	}}}
	if diff := cmp.Diff(want, s.StateOf("web.shop"), protocmp.Transform(), protocmp.IgnoreFields(want, "probe_set")); diff != "" {
		t.Errorf("StateOf() (-want +got):\n%s", diff)
	}
	if got := s.StateOf("other.shop"); got != nil {
		t.Errorf("an unknown pod is %v", got)
	}
}
