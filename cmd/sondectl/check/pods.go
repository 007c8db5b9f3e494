package check

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/webhook"
)

// notInjected reports pods that should have a sidecar but have none.
var notInjected = check{"pods", (*facts).needsWorkloads, func(f *facts, l *lines) {
	namespaces, injection := f.namespacesByName(), f.injection()
	without, wrong, twice := map[string]int{}, []string(nil), []string(nil)
	have := 0
	for i := range f.pods.is {
		pod := &f.pods.is[i]
		ns := namespaces[pod.Namespace]
		if ns == nil || ended(pod) {
			continue
		}
		selection, err := webhook.Select(ns, pod, injection)
		switch {
		case err != nil:
			wrong = append(wrong, fmt.Sprintf("%s: %s", workloadOf(pod), err))
		case podspec.IsInjected(&pod.Spec):
			have++
			for _, f := range podspec.Foreigners(pod) {
				twice = append(twice, fmt.Sprintf("%s: %s: %s", workloadOf(pod), f.By, f.Mesh))
			}
		case selection.Injected:
			without[workloadOf(pod)]++
		case selection.Warn:
			wrong = append(wrong, fmt.Sprintf("%s: %s", workloadOf(pod), selection.Why))
		}
	}
	var lack []string
	for w, n := range without {
		lack = append(lack, fmt.Sprintf("%s: %s", w, printer.Plural(n, "pod")))
	}
	l.failOf(sorted(lack),
		"pods should have a sidecar but have none: they were created before the label was set, or without the webhook",
		"restart these workloads with kubectl rollout restart, and delete pods that no controller recreates")
	l.failOf(sorted(twice),
		"pods have sidecars of both Sonde and another mesh: only one of them gets the connections",
		"configure only one mesh to inject them, and restart these workloads with kubectl rollout restart")
	l.warnOf(sorted(wrong), "pods ask for a sidecar but cannot get one",
		"correct the label, configure only one mesh to inject them, or accept that they have no sidecar")
	l.ok(fmt.Sprintf("%d pods have a sidecar, no pod lacks one", have))
}}

// namespacesByName returns the namespaces as input of webhook.Select.
func (f *facts) namespacesByName() map[string]*webhook.Namespace {
	all := map[string]*webhook.Namespace{}
	for i := range f.namespaces.is {
		ns := &f.namespaces.is[i]
		all[ns.Name] = &webhook.Namespace{Name: ns.Name, Labels: ns.Labels, Annotations: ns.Annotations}
	}
	return all
}

// ended reports whether a pod has ended or is being deleted.
func ended(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || podspec.Ended(pod)
}

// workloadOf names the owner of a pod, as Kind/namespace/name.
func workloadOf(pod *corev1.Pod) string {
	kind, name := "Pod", pod.Name
	if owner := metav1.GetControllerOf(pod); owner != nil {
		kind, name = owner.Kind, owner.Name
		if of, ok := podspec.DeploymentOf(name, pod); ok && kind == "ReplicaSet" {
			kind, name = "Deployment", of
		}
	}
	return kind + "/" + pod.Namespace + "/" + name
}
