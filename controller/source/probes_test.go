package source

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// injectedPod reads a pod as the webhook writes it.
func injectedPod(t *testing.T, file string) *corev1.Pod {
	t.Helper()
	text, err := os.ReadFile("../../testdata/inject/" + file)
	if err != nil {
		t.Fatal(err)
	}
	p := &corev1.Pod{}
	if err := yaml.Unmarshal(text, p); err != nil {
		t.Fatal(err)
	}
	p.Namespace, p.Name = "shop", "web"
	return p
}

// probesOf returns the texts about the probes of a pod.
func probesOf(t *testing.T, p *corev1.Pod) *adminv1.ProbeSet {
	t.Helper()
	s := newSource(t, newRecorder())
	s.add(t, p)
	set := s.ProbesOf(mesh.ObjectDataplane(p.Namespace, p.Name))
	if id := s.StateOf(mesh.ObjectDataplane(p.Namespace, p.Name)).GetProbeSet(); id != set.GetId() {
		t.Errorf("the pod's state has the set %d, want %d", id, set.GetId())
	}
	return set
}

// TestProbeTexts has pods as the webhook writes them. The third text is empty if the agent does not answer the probe.
func TestProbeTexts(t *testing.T) {
	tests := map[string]struct {
		file, probe string
		want        [3]string
	}{
		"httpGet": {"every-probe/native.yaml", "web liveness", [3]string{
			"httpGet HTTPS :8443 /alive every 20s, timeout 5s, fails after 4", "httpGet :9000 /8443/alive every 20s, timeout 6s, fails after 4",
			"GET https://:8443/alive with 4 headers, timeout 5s",
		}},
		"grpc": {"every-probe/container.yaml", "db readiness", [3]string{
			"grpc :50051 shop.v1.Orders every 10s, timeout 1s, fails after 3", "httpGet :9000 /grpc/50051/shop.v1.Orders every 10s, timeout 2s, fails after 3",
			`gRPC health of "shop.v1.Orders" at :50051, timeout 1s`,
		}},
		"tcpSocket": {"every-probe/native.yaml", "db startup", [3]string{
			"tcpSocket :5432 every 10s, timeout 3s, fails after 3", "httpGet :9000 /tcp/5432 every 10s, timeout 4s, fails after 3", "connect to :5432, timeout 3s",
		}},
		"tcpSocket, per port": {"per-port/native.yaml", "db startup", [3]string{
			"tcpSocket :5432 every 10s, timeout 3s, fails after 3", "tcpSocket :9004 every 10s, timeout 3s, fails after 3", "nothing: the kernel redirects the connection to :5432",
		}},
		"grpc, per port": {"per-port/native.yaml", "db liveness", [3]string{
			"grpc :50051 every 10s, timeout 1s, fails after 3", "grpc :9005 every 10s, timeout 1s, fails after 3", `gRPC health of "" at :50051, timeout 1s`,
		}},
		"exec": {"every-probe/native.yaml", "job liveness", [3]string{
			"exec /bin/alive every 10s, timeout 1s, fails after 3", "exec /bin/alive every 10s, timeout 1s, fails after 3", "",
		}},
		"guarded": {"guarded/native.yaml", "web liveness", [3]string{
			"httpGet :8080 /alive?a=<b>&c=$d every 5s, timeout 2s, fails after 4", "httpGet :9000 /8080/alive?a=<b>&c=$d every 5s, timeout 600s, fails after 5",
			"GET http://:8080/alive?a=<b>&c=$d with 1 header, timeout 2s, fails after 4, guarded",
		}},
		"guarded exec": {"guarded-exec/native.yaml", "startup liveness", [3]string{
			"exec /bin/sh -c exec /bin/alive --name=$(NAME) every 60s, timeout 5s, fails after 2", "httpGet :9000 /exec/startup every 60s, timeout 600s, fails after 5",
			"exec /bin/sh -c exec /bin/alive --name=$(NAME), in the container, timeout 5s, fails after 2, guarded",
		}},
		"it also starts the helper": {"guarded-exec/native.yaml", "startup startup", [3]string{
			"exec /bin/started $(NAME) every 10s, timeout 1s, fails after 30",
			"exec /.sonde/exec/sonde-exec start --directory=/.sonde/socket --… every 10s, timeout 1s, fails after 30", "",
		}},
		"it only starts the helper": {"guarded-exec/native.yaml", "logs startup", [3]string{
			"none: Sonde has added this probe, which starts its helper for the exec probe",
			"exec /.sonde/exec/sonde-exec start --directory=/.sonde/socket --… every 1s, timeout 10s, fails after 2147483647", "",
		}},
		"virtual probes are disabled": {"virtual-probes-disabled/native.yaml", "web startup", [3]string{
			"tcpSocket :8080 every 10s, timeout 1s, fails after 3", "tcpSocket :8080 every 10s, timeout 1s, fails after 3", "",
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got [3]string
			for _, p := range probesOf(t, injectedPod(t, tc.file)).GetProbes() {
				if p.GetContainer()+" "+p.GetProbe() == tc.probe {
					got = [3]string{p.GetWritten(), p.GetKubelet(), p.GetAgent()}
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("texts of %s (-want +got):\n%s", tc.probe, diff)
			}
		})
	}
}

func TestPodsWithoutProbeTexts(t *testing.T) {
	bad := injectedPod(t, "every-probe/native.yaml")
	c := podspec.Container(&bad.Spec, mesh.ContainerSidecar)
	for _, table := range []string{"{", "[" + strings.Repeat(" ", mesh.MaxProbeTable) + "]"} {
		for i := range c.Env {
			if c.Env[i].Name == mesh.EnvProbeTable {
				c.Env[i].Value = table
			}
		}
		if set := probesOf(t, bad); set != nil {
			t.Errorf("with an invalid table of %d bytes: %v", len(table), set)
		}
	}
	if set := probesOf(t, pod("web", "u", "10.0.0.1")); set != nil {
		t.Errorf("without probes: %v", set)
	}
	s := newSource(t, newRecorder())
	if set := s.ProbesOf("other.shop"); set != nil {
		t.Errorf("of an unknown pod: %v", set)
	}
}

// A tenant's texts are bounded, in one line each.
func TestProbeTextsAreBounded(t *testing.T) {
	p := pod("web", "u", "10.0.0.1")
	for i := range maxProbeTexts {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprint("c", i), LivenessProbe: &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/a\nb\x1b" + strings.Repeat("ä", 60_000)}},
			PeriodSeconds: 1<<31 - 1, TimeoutSeconds: 1<<31 - 1, FailureThreshold: 1<<31 - 1,
		}})
	}
	p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[1])
	set := probesOf(t, p)
	if n := len(set.GetProbes()); n != maxProbeTexts {
		t.Errorf("%d probes, want %d", n, maxProbeTexts)
	}
	const end = "ä… every 2147483647s, timeout 2147483647s, fails after 2147483647"
	if text := set.GetProbes()[0].GetWritten(); len(text) > maxProbeText || !strings.HasPrefix(text, "httpGet :0 /a b ä") || !strings.HasSuffix(text, end) {
		t.Errorf("%d bytes: %q", len(text), text)
	}
}

// Equal pods share their texts, and have the same ID. Others have another one.
func TestEqualPodsShareProbeTexts(t *testing.T) {
	s := newSource(t, newRecorder())
	for _, name := range []string{"a", "b"} {
		p := injectedPod(t, "every-probe/native.yaml")
		p.Name = name
		s.add(t, p)
	}
	other := injectedPod(t, "every-probe/native.yaml")
	other.Name = "c"
	other.Spec.Containers[len(other.Spec.Containers)-1].LivenessProbe.PeriodSeconds++
	s.add(t, other)
	of := func(name string) probeSet { return s.pods.Get(watch.Key{Namespace: "shop", Name: name}).Probes }
	if of("a") != of("b") || of("a").id == of("c").id || of("a").id == 0 {
		t.Errorf("the IDs are %d, %d and %d", of("a").id, of("b").id, of("c").id)
	}
}
