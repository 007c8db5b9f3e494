package check

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/webhook"
)

// notInjected says which pods should have a sidecar and have none.
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
		"pods should have a sidecar and have none: they were made before the label, or past the webhook",
		"kubectl rollout restart these workloads, and delete pods that nothing makes again")
	l.failOf(sorted(twice),
		"pods have a sidecar of another mesh beside that of Sonde: only one of the two gets their connections",
		"let one mesh inject them, and kubectl rollout restart these workloads")
	l.warnOf(sorted(wrong), "pods ask for a sidecar in a way that gets them none",
		"mend the label, let one mesh alone inject them, or do without")
	l.ok(fmt.Sprintf("%d have a sidecar, and none lacks one", have))
}}

// namespacesByName returns what injection knows of namespaces.
func (f *facts) namespacesByName() map[string]*webhook.Namespace {
	all := map[string]*webhook.Namespace{}
	for i := range f.namespaces.is {
		ns := &f.namespaces.is[i]
		all[ns.Name] = &webhook.Namespace{Name: ns.Name, Labels: ns.Labels, Annotations: ns.Annotations}
	}
	return all
}

// ended reports whether a pod takes no part any more.
func ended(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || podspec.Ended(pod)
}

// workloadOf names what has made a pod, as Kind/namespace/name.
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
