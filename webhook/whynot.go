package webhook

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Absence says why a pod has no sidecar.
type Absence struct {
	// Why begins "it has no sidecar", and ends without a full stop.
	Why string
	// Missing says that a pod like it would get one now: this one was made before that was asked for, or past the webhook.
	Missing bool
	// Warning is for the author of the pod, "" for none.
	Warning string
}

// WhyNot says why a pod without our sidecar has none, by what decides about injection. It does not say whether the pod has one.
func WhyNot(ns *Namespace, pod *corev1.Pod, o Options) Absence {
	s, err := Select(ns, pod, o)
	switch {
	case err != nil:
		return Absence{Why: "it has no sidecar, and a pod like it would be refused now: " + inOneLine(err)}
	case s.Injected:
		return Absence{Missing: true, Why: fmt.Sprintf("it has no sidecar although %s asks for one: it was made before that, or past the webhook", o.asking(ns, pod))}
	case s.Why != "":
		return Absence{Why: "it has no sidecar: " + s.Why, Warning: s.Warning()}
	}
	return Absence{Why: fmt.Sprintf("it has no sidecar, and nothing asks for one: neither it nor namespace %s has %s", ns.Name, strings.Join(o.InjectionKeys(), " or "))}
}

// asking returns which label or annotation asks for the sidecar of a pod that Select has chosen.
func (o *Options) asking(ns *Namespace, pod *corev1.Pod) string {
	if asked, key, _ := o.askedByPod(&pod.ObjectMeta); asked != nil {
		return key + " of the pod"
	}
	_, key, _ := o.askedByNamespace(ns)
	return key + " of namespace " + ns.Name
}
