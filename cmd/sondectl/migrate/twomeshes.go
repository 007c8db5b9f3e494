package migrate

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// asking is how workloads ask another mesh for a sidecar: by one key of a pod or its namespace.
type asking struct {
	mesh, key string
	// on reports whether a value asks for one, and off is a value that does not.
	on  func(value string) bool
	off string
	// always says that the mesh may inject pods that do not ask.
	always bool
}

// Istio is asked by several keys, and Kuma by the one that Sonde reads, too.
// Source: linkerd2 pkg/k8s/labels.go; consul-k8s control-plane/connect-inject/constants; aws-app-mesh-controller-for-k8s pkg/inject/constants.go.
var askings = []asking{
	{mesh: podspec.Linkerd, key: podspec.LinkerdInject, on: func(v string) bool { return v == "enabled" || v == "ingress" }, off: "disabled"},
	{mesh: podspec.Consul, key: podspec.ConsulInject, on: isTrue, off: `"false"`, always: true},
	{mesh: podspec.AppMesh, key: podspec.AppMeshInject, on: func(v string) bool { return v == "enabled" }, off: "disabled"},
}

func isTrue(value string) bool {
	is, err := strconv.ParseBool(value)
	return err == nil && is
}

// twoMeshes returns findings if another mesh puts its sidecar into the pods that Sonde selects.
func (c *Cluster) twoMeshes(w *workload, modes map[Mode]int) []Finding {
	var all []Finding
	add := func(format string, args ...any) {
		all = append(all, Finding{Code: TwoMeshes, Text: fmt.Sprintf(format, args...)})
	}
	if slices.ContainsFunc(meshesOf(w.template), func(m string) bool { return m != meshSonde }) {
		add("the pod template itself has a sidecar of another mesh: write it without, as it was before it was injected by hand")
	}
	if c.asksIstio(w) {
		add("Istio and Sonde both inject, and Sonde leaves alone what has a sidecar of Istio: set %s: \"false\" on the pod template", istioInject)
	}
	for _, a := range askings {
		if c.asks(w, &a) {
			add("%s and Sonde both inject, and Sonde leaves alone what has a sidecar of %s: set %s: %s on the pod template", a.mesh, a.mesh, a.key, a.off)
		}
	}
	ofKuma := slices.ContainsFunc(sortedKeys(modes), Mode.ofKuma)
	if ofKuma && enabled(c.setting(w, mesh.LabelInjection)) {
		add("%s: enabled: as long as Kuma's webhook runs, it injects this workload, too, and Sonde leaves alone what has a sidecar of Kuma: "+
			"run Sonde with --kuma-labels=false, and set %s on what it takes over and %s: disabled", mesh.LabelInjection, mesh.LabelOwnInjection, mesh.LabelInjection)
	}
	return all
}

// asksIstio reports whether a workload asks Istio for a sidecar.
func (c *Cluster) asksIstio(w *workload) bool {
	istio := cmp.Or(c.setting(w, istioInject), c.setting(w, "istio-injection"))
	revision := w.template.Labels[istioRevision]
	if ns := c.namespaces[w.namespace]; ns != nil && revision == "" {
		revision = ns.Labels[istioRevision]
	}
	return enabled(istio) || istio == "" && revision != ""
}

// asks reports whether a workload asks another mesh for a sidecar, or gets one without being asked.
func (c *Cluster) asks(w *workload, a *asking) bool {
	value := c.setting(w, a.key)
	if ns := c.namespaces[w.namespace]; ns != nil && value == "" {
		value = ns.Annotations[a.key]
	}
	if value == "" && a.always {
		return slices.ContainsFunc(w.pods, func(pod *corev1.Pod) bool { return slices.Contains(meshesOf(pod), a.mesh) })
	}
	return a.on(value)
}
