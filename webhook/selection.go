package webhook

import (
	"cmp"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// Namespace has the fields of a pod's namespace that injection reads.
type Namespace struct {
	Name   string
	Labels map[string]string
	// Annotations may contain sonde.dev/virtual-probes-mode, sonde.dev/guarded-liveness, sonde.dev/meshes, sonde.dev/cni
	// and the sidecar's resources; others are ignored.
	Annotations map[string]string
}

// Selection says whether a pod gets a sidecar.
type Selection struct {
	Injected bool
	// Why the pod gets no sidecar, such as "kuma.io/sidecar-injection is disabled"; "" if it gets one, or if nothing asks
	// for one.
	Why string
	// Warn means that the user may not expect Why.
	Warn bool
}

// Warning is for the user who creates a pod without a sidecar, "" for none.
func (s *Selection) Warning() string {
	if !s.Warn {
		return ""
	}
	return s.Why + notInjected
}

// notInjected is the end of the warning about a pod that is not injected.
const notInjected = ": not injected"

// Select decides whether a pod gets a sidecar. The pod's own label or annotation takes precedence over its namespace's
// label. ns is nil if the namespace is unknown, as for a file: then a pod gets a sidecar unless its own setting
// disables that. The error names a label or annotation with an invalid value.
func Select(ns *Namespace, pod *corev1.Pod, o Options) (Selection, error) {
	o.setDefaults()
	return o.selectPod(ns, pod)
}

func (o *Options) selectPod(ns *Namespace, pod *corev1.Pod) (Selection, error) {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		// The node runs the pod of its file, and ignores changes of the mirror pod.
		return Selection{Why: "it is the mirror pod of a static pod"}, nil
	}
	asked, key, err := o.askedByPod(&pod.ObjectMeta)
	if err == nil && ns != nil {
		if ns.Name == metav1.NamespaceSystem || ns.Name == o.ControlPlaneNamespace {
			return Selection{Why: "pods of namespace " + ns.Name + " are not injected", Warn: asked != nil && *asked}, nil
		}
		if asked == nil {
			asked, key, err = o.askedByNamespace(ns)
		}
		if asked == nil && err == nil {
			return Selection{}, nil
		}
	}
	return selectAsked(pod, asked, key, err)
}

// selectAsked decides about a pod by the value of key, or its error. asked is nil if the namespace is unknown.
func selectAsked(pod *corev1.Pod, asked *bool, key string, err error) (Selection, error) {
	why := podspec.Unsupported(&pod.Spec)
	switch {
	case err != nil && why == "": // the API server does not call the webhook for other pods
		return Selection{}, err
	case err == nil && asked != nil && !*asked:
		return Selection{Why: key + " is disabled"}, nil
	}
	if why = cmp.Or(why, inOtherMesh(pod)); why != "" {
		return Selection{Why: why, Warn: true}, nil
	}
	return Selection{Injected: true}, nil
}

// inOtherMesh returns why a pod belongs to another mesh, "" if it does not. A pod with Sonde's sidecar keeps it.
func inOtherMesh(pod *corev1.Pod) string {
	if podspec.IsInjected(&pod.Spec) {
		return ""
	}
	for _, f := range podspec.Foreigners(pod) {
		return f.By + ": it has a sidecar of " + f.Mesh + ", which gets its connections"
	}
	return ""
}

// warnOtherMesh warns of a pod to which another mesh has added its sidecar after Sonde.
func (in *injection) warnOtherMesh() {
	for _, f := range podspec.Foreigners(in.pod) {
		in.warn("%s: the pod also has a sidecar of %s, and only one of the two gets its connections: configure only one mesh to inject it", f.By, f.Mesh)
	}
}

// askedByPod returns whether a pod's labels and annotations ask for a sidecar, and the key, nil if none is set.
func (o *Options) askedByPod(meta *metav1.ObjectMeta) (asked *bool, by string, err error) {
	for _, key := range o.InjectionKeys() {
		label, isLabel := meta.Labels[key]
		value, isAnnotation := meta.Annotations[key]
		var byLabel *bool
		var errs []error
		if isLabel {
			if byLabel, err = parseSwitch(label); err != nil {
				errs = append(errs, &mesh.FieldError{Field: labelField(key), Value: label, Err: err})
			}
		}
		if isAnnotation {
			if asked, err = parseSwitch(value); err != nil {
				errs = append(errs, &mesh.FieldError{Field: annotationField(key), Value: value, Err: err})
			}
		}
		if byLabel != nil && asked != nil && *byLabel != *asked {
			errs = append(errs, contradiction(key, value, label))
		}
		if isLabel || isAnnotation {
			return cmp.Or(byLabel, asked), key, errors.Join(errs...)
		}
	}
	return nil, "", nil
}

// askedByNamespace returns whether a namespace's labels ask for a sidecar, and the key, nil if none is set.
func (o *Options) askedByNamespace(ns *Namespace) (asked *bool, by string, err error) {
	for _, key := range o.InjectionKeys() {
		if value, ok := ns.Labels[key]; ok {
			if asked, err = parseSwitch(value); err != nil {
				err = &mesh.FieldError{Field: ns.labelField(key), Value: value, Err: err}
			}
			return asked, key, err
		}
	}
	return nil, "", nil
}

func (ns *Namespace) labelField(key string) string {
	return "namespace " + ns.Name + ": " + labelField(key)
}

// mesh returns the namespace's mesh, "" if unset.
func (ns *Namespace) mesh() (string, error) {
	name := ns.Labels[mesh.LabelMesh]
	if name != "" && !isMeshName(name) {
		return "", &mesh.FieldError{Field: ns.labelField(mesh.LabelMesh), Value: name, Allowed: meshNameRule}
	}
	return name, nil
}

// labelPodSecurity is the label with the level of Pod Security that a namespace enforces.
// Source: k8s.io/pod-security-admission api/constants.go.
const labelPodSecurity = "pod-security.kubernetes.io/enforce"

// podSecurity returns why Pod Security will reject injected pods of the namespace, "" if it will not.
func (ns *Namespace) podSecurity() string {
	level := ns.Labels[labelPodSecurity]
	if level != "baseline" && level != "restricted" {
		return ""
	}
	return fmt.Sprintf("namespace %s: %s is %s: %s needs the capability NET_ADMIN, so Pod Security rejects this pod: "+
		"a native sidecar does not need it if %s is enabled", ns.Name, labelPodSecurity, level, mesh.ContainerInit, mesh.LabelCNI)
}
