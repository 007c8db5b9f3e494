package podspec

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Names of other meshes that put sidecars into pods.
const (
	AppMesh = "AWS App Mesh"
	Consul  = "Consul"
	Istio   = "Istio"
	Kuma    = "Kuma"
	Linkerd = "Linkerd"
)

// Keys by which a pod or its namespace asks another mesh for a sidecar.
const (
	AppMeshInject = "appmesh.k8s.aws/sidecarInjectorWebhook"
	ConsulInject  = "consul.hashicorp.com/connect-inject"
	LinkerdInject = "linkerd.io/inject"
)

// Foreign is the sidecar of another mesh in a pod.
type Foreign struct {
	Mesh string
	// By is the field that shows it.
	By string
	// Containers and Annotations are names of what its injector puts there.
	Containers, Annotations []string
}

// injector is what the injector of another mesh puts into a pod. All containers of a sidecar show it, and so does the annotation.
type injector struct {
	mesh string
	// sidecars are sets of containers, native ones among them, each of which is a sidecar; helpers come with them.
	sidecars [][]string
	helpers  []string
	// annotation has the value, any if that is "". More annotations say nothing by themselves.
	annotation, value string
	more              []string
}

// Kuma's containers have the names of ours, and App Mesh's the name envoy, which applications have, too.
// Source: kuma pkg/plugins/runtime/k8s/metadata/annotations.go; istio pkg/kube/inject, istio.io/api annotation; linkerd2 pkg/k8s/labels.go;
// consul-k8s control-plane/connect-inject/constants; aws-app-mesh-controller-for-k8s pkg/inject.
var injectors = []injector{
	{mesh: Kuma, helpers: []string{mesh.ContainerSidecar, mesh.ContainerInit, "kuma-validation"}, annotation: mesh.Prefix + "sidecar-injected", value: "true"},
	{mesh: Istio, sidecars: [][]string{{"istio-proxy"}}, helpers: []string{"istio-init", "istio-validation"}, annotation: "sidecar.istio.io/status"},
	{
		mesh: Linkerd, sidecars: [][]string{{"linkerd-proxy"}}, helpers: []string{"linkerd-init", "linkerd-network-validator"},
		annotation: "linkerd.io/proxy-version", more: []string{"linkerd.io/created-by", "linkerd.io/trust-root-sha256"},
	},
	{
		mesh: Consul, sidecars: [][]string{{"consul-dataplane"}, {"envoy-sidecar"}}, helpers: []string{"consul-connect-inject-init"},
		annotation: "consul.hashicorp.com/connect-inject-status", value: "injected", more: []string{"consul.hashicorp.com/transparent-proxy-status"},
	},
	{mesh: AppMesh, sidecars: [][]string{{"envoy", "proxyinit"}}, annotation: "appmesh.k8s.aws/proxyIngressPort", more: []string{"appmesh.k8s.aws/proxyEgressPort"}},
}

// Foreigners returns the sidecars of other meshes in a pod, one of each mesh.
func Foreigners(pod *corev1.Pod) (all []Foreign) {
	for i := range injectors {
		is := &injectors[i]
		if by := is.shownBy(pod); by != "" {
			all = append(all, Foreign{is.mesh, by, slices.Concat(slices.Concat(is.sidecars...), is.helpers), slices.Concat(is.more, []string{is.annotation})})
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
	if value, there := pod.Annotations[is.annotation]; there && (is.value == "" || value == is.value) {
		return fmt.Sprintf("metadata.annotations[%q]", is.annotation)
	}
	return ""
}
