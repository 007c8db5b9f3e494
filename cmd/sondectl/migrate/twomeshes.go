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

// asking describes the label or annotation of a pod or its namespace that asks another mesh for a sidecar.
type asking struct {
	mesh, key string
	// on reports whether a value asks for a sidecar, and off is a value that does not.
	on  func(value string) bool
	off string
	// always means that the mesh may inject pods that do not ask.
	always bool
}

// Istio has several keys, and Kuma's key is one that Sonde also reads: the code handles both separately.
// Source: linkerd2 pkg/k8s/labels.go; consul-k8s control-plane/connect-inject/constants; and
// aws-app-mesh-controller-for-k8s pkg/inject/constants.go.
var askings = []asking{
	{
		mesh: podspec.Linkerd, key: podspec.LinkerdInject,
		on: func(v string) bool { return v == "enabled" || v == "ingress" }, off: "disabled",
	},
	{mesh: podspec.Consul, key: podspec.ConsulInject, on: isTrue, off: `"false"`, always: true},
	{
		mesh: podspec.AppMesh, key: podspec.AppMeshInject,
		on: func(v string) bool { return v == "enabled" }, off: "disabled",
	},
}

func isTrue(value string) bool {
	is, err := strconv.ParseBool(value)
	return err == nil && is
}

// twoMeshes returns findings if another mesh injects the pods that Sonde selects.
func (c *Cluster) twoMeshes(w *workload, modes map[Mode]int) []Finding {
	var all []Finding
	add := func(format string, args ...any) {
		all = append(all, Finding{Code: TwoMeshes, Text: fmt.Sprintf(format, args...)})
	}
	if slices.ContainsFunc(meshesOf(w.template), func(m string) bool { return m != meshSonde }) {
		add("the pod template itself contains a sidecar of another mesh: restore the template from before the manual injection")
	}
	if c.asksIstio(w) {
		add("Istio and Sonde both inject, but Sonde skips pods with a sidecar of Istio: set %s: \"false\" on the pod template", istioInject)
	}
	for _, a := range askings {
		if c.asks(w, &a) {
			add("%s and Sonde both inject, but Sonde skips pods with a sidecar of %s: set %s: %s on the pod template", a.mesh, a.mesh, a.key, a.off)
		}
	}
	ofKuma := slices.ContainsFunc(sortedKeys(modes), Mode.ofKuma)
	if ofKuma && enabled(c.setting(w, mesh.LabelInjection)) {
		add("%s: enabled: while Kuma's webhook runs, it also injects this workload, and Sonde skips pods with a sidecar of Kuma: "+
			"run Sonde with --kuma-labels=false, and on workloads that Sonde takes over set %s, and %s: disabled", mesh.LabelInjection, mesh.LabelOwnInjection, mesh.LabelInjection)
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

// asks reports whether a workload gets a sidecar of another mesh, because it asks or without asking.
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
