package webhook

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Absence says why a pod has no sidecar.
type Absence struct {
	// Why begins with "it has no sidecar", and has no full stop.
	Why string
	// Missing means that the pod would get a sidecar now: it was created before the label was set, or without the webhook.
	Missing bool
	// Warning is for the user who creates the pod, "" for none.
	Warning string
}

// WhyNot explains why a pod without Sonde's sidecar has none, by the settings for injection. It does not check that the
// pod has none.
func WhyNot(ns *Namespace, pod *corev1.Pod, o Options) Absence {
	s, err := Select(ns, pod, o)
	switch {
	case err != nil:
		return Absence{Why: "it has no sidecar, and the webhook would reject it now: " + inOneLine(err)}
	case s.Injected:
		return Absence{Missing: true, Why: fmt.Sprintf("it has no sidecar although %s asks for one: it was created before the label was set, or without the webhook", o.asking(ns, pod))}
	case s.Why != "":
		return Absence{Why: "it has no sidecar: " + s.Why, Warning: s.Warning()}
	}
	return Absence{Why: fmt.Sprintf("it has no sidecar, and nothing asks for one: neither the pod nor namespace %s has %s", ns.Name, strings.Join(o.InjectionKeys(), " or "))}
}

// asking returns the label or annotation that asks for the sidecar of a selected pod.
func (o *Options) asking(ns *Namespace, pod *corev1.Pod) string {
	if asked, key, _ := o.askedByPod(&pod.ObjectMeta); asked != nil {
		return key + " of the pod"
	}
	_, key, _ := o.askedByNamespace(ns)
	return key + " of namespace " + ns.Name
}
