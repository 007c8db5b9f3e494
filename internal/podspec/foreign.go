package podspec

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Names of other meshes that inject sidecars into pods.
const (
	AppMesh = "AWS App Mesh"
	Consul  = "Consul"
	Istio   = "Istio"
	Kuma    = "Kuma"
	Linkerd = "Linkerd"
)

// Keys by which a pod or its namespace requests a sidecar from another mesh.
const (
	AppMeshInject = "appmesh.k8s.aws/sidecarInjectorWebhook"
	ConsulInject  = "consul.hashicorp.com/connect-inject"
	LinkerdInject = "linkerd.io/inject"
)

// Foreign is the sidecar of another mesh in a pod.
type Foreign struct {
	Mesh string
	// By is the field that identifies the other mesh.
	By string
	// Containers and Annotations are the names of containers and annotations that its injector adds.
	Containers, Annotations []string
}

// injector describes what another mesh's injector adds to a pod. A complete set of sidecar containers identifies the
// mesh, and so does the annotation.
type injector struct {
	mesh string
	// sidecars are sets of containers, including native ones. Each set is a sidecar; helpers are added with it.
	sidecars [][]string
	helpers  []string
	// annotation must have this value, or any value if it is "". Other annotations alone prove nothing.
	annotation, value string
	more              []string
}

// Kuma's containers have the same names as Sonde's, and App Mesh's the name envoy, which applications also use.
// Source: kuma pkg/plugins/runtime/k8s/metadata/annotations.go; istio pkg/kube/inject, istio.io/api annotation;
// linkerd2 pkg/k8s/labels.go; consul-k8s control-plane/connect-inject/constants; aws-app-mesh-controller-for-k8s
// pkg/inject.
var injectors = []injector{
	{mesh: Kuma, helpers: []string{mesh.ContainerSidecar, mesh.ContainerInit, "kuma-validation"},
		annotation: mesh.Prefix + "sidecar-injected", value: "true"},
	{mesh: Istio, sidecars: [][]string{{"istio-proxy"}}, helpers: []string{"istio-init", "istio-validation"},
		annotation: "sidecar.istio.io/status"},
	{
		mesh: Linkerd, sidecars: [][]string{{"linkerd-proxy"}}, helpers: []string{"linkerd-init",
			"linkerd-network-validator"},
		annotation: "linkerd.io/proxy-version", more: []string{"linkerd.io/created-by", "linkerd.io/trust-root-sha256"},
	},
	{
		mesh: Consul, sidecars: [][]string{{"consul-dataplane"}, {"envoy-sidecar"}},
		helpers:    []string{"consul-connect-inject-init"},
		annotation: "consul.hashicorp.com/connect-inject-status",
		value:      "injected", more: []string{"consul.hashicorp.com/transparent-proxy-status"},
	},
	{mesh: AppMesh, sidecars: [][]string{{"envoy", "proxyinit"}}, annotation: "appmesh.k8s.aws/proxyIngressPort",
		more: []string{"appmesh.k8s.aws/proxyEgressPort"}},
}

// Foreigners returns the sidecars of other meshes in a pod, one per mesh.
func Foreigners(pod *corev1.Pod) (all []Foreign) {
	for i := range injectors {
		is := &injectors[i]
		if by := is.shownBy(pod); by != "" {
			all = append(all, Foreign{is.mesh, by, slices.Concat(slices.Concat(is.sidecars...), is.helpers),
				slices.Concat(is.more, []string{is.annotation})})
		}
	}
	return all
}

func (is *injector) shownBy(pod *corev1.Pod) string {
	for _, names := range is.sidecars {
		if !slices.ContainsFunc(names, func(name string) bool { return Container(&pod.Spec, name) == nil }) {
			return "containers[" + names[0] + "]"
		}
	}
	if value, ok := pod.Annotations[is.annotation]; ok && (is.value == "" || value == is.value) {
		return fmt.Sprintf("metadata.annotations[%q]", is.annotation)
	}
	return ""
}
