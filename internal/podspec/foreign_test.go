package podspec_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/internal/podspec"
)

func TestForeigners(t *testing.T) {
	containers := func(names ...string) (all []corev1.Container) {
		for _, name := range names {
			all = append(all, corev1.Container{Name: name})
		}
		return all
	}
	tests := map[string]struct {
		containers, native []corev1.Container
		annotation, value  string
		want               []string
	}{
		"none":                             {containers: containers("app")},
		"Istio":                            {containers: containers("app", "istio-proxy"), want: []string{"Istio containers[istio-proxy]"}},
		"Istio, native":                    {native: containers("istio-init", "istio-proxy"), want: []string{"Istio containers[istio-proxy]"}},
		"Istio, by its annotation":         {annotation: "sidecar.istio.io/status", value: "{}", want: []string{`Istio metadata.annotations["sidecar.istio.io/status"]`}},
		"Istio's init container alone":     {native: containers("istio-init")},
		"Linkerd":                          {containers: containers("linkerd-proxy", "app"), want: []string{"Linkerd containers[linkerd-proxy]"}},
		"Linkerd, native":                  {native: containers("linkerd-proxy"), want: []string{"Linkerd containers[linkerd-proxy]"}},
		"Linkerd, by its annotation":       {annotation: "linkerd.io/proxy-version", value: "edge-25.1.1", want: []string{`Linkerd metadata.annotations["linkerd.io/proxy-version"]`}},
		"Linkerd is only asked":            {annotation: "linkerd.io/inject", value: "enabled"},
		"Consul":                           {containers: containers("consul-dataplane"), want: []string{"Consul containers[consul-dataplane]"}},
		"Consul, native":                   {native: containers("consul-dataplane"), want: []string{"Consul containers[consul-dataplane]"}},
		"an old Consul":                    {containers: containers("envoy-sidecar"), want: []string{"Consul containers[envoy-sidecar]"}},
		"Consul, a port of several":        {annotation: "consul.hashicorp.com/connect-inject-status", value: "injected", want: []string{`Consul metadata.annotations["consul.hashicorp.com/connect-inject-status"]`}},
		"Consul has not":                   {annotation: "consul.hashicorp.com/connect-inject-status", value: "x"},
		"App Mesh":                         {containers: containers("envoy"), native: containers("proxyinit"), want: []string{"AWS App Mesh containers[envoy]"}},
		"App Mesh with the CNI plugin":     {containers: containers("envoy"), annotation: "appmesh.k8s.aws/proxyIngressPort", value: "15000", want: []string{`AWS App Mesh metadata.annotations["appmesh.k8s.aws/proxyIngressPort"]`}},
		"an Envoy of the user":             {containers: containers("envoy")},
		"Kuma":                             {containers: containers("kuma-sidecar"), annotation: "kuma.io/sidecar-injected", value: "true", want: []string{`Kuma metadata.annotations["kuma.io/sidecar-injected"]`}},
		"a container of Kuma's name":       {containers: containers("kuma-sidecar")},
		"two":                              {containers: containers("linkerd-proxy", "istio-proxy"), want: []string{"Istio containers[istio-proxy]", "Linkerd containers[linkerd-proxy]"}},
		"what Cilium writes is no sidecar": {annotation: "policy.cilium.io/proxy-visibility", value: "<Ingress/80/TCP/HTTP>"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{tc.annotation: tc.value}}, Spec: corev1.PodSpec{Containers: tc.containers, InitContainers: tc.native}}
			var got []string
			for _, f := range podspec.Foreigners(pod) {
				got = append(got, f.Mesh+" "+f.By)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("Foreigners() = %q, want %q", got, tc.want)
			}
		})
	}
}
