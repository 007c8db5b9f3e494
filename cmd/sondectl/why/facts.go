// Package why says why a pod is not ready, or gets no traffic: Read and Ask gather what the API server and the control plane know, Judge says what
// follows, and Write prints it.
package why

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/webhook"
)

// Facts are what is known of a pod.
type Facts struct {
	// Now is when it was read.
	Now time.Time
	Pod *corev1.Pod
	// Events about the pod, the newest first.
	Events []Event
	// Namespace of a pod without our sidecar, nil if it could not be read.
	Namespace *corev1.Namespace
	// Template is that by which the owner of the pod makes pods now, nil if it was not read, Owner names it.
	Template *corev1.PodTemplateSpec
	Owner    string
	// Injection is how the webhook decides about injection. NoWebhook says that there is none.
	Injection webhook.Options
	NoWebhook bool
	// Services of the namespace, and their slices. Unread says that they could not be read.
	Services []corev1.Service
	Slices   []discoveryv1.EndpointSlice
	Unread   bool
	// Plane is what the control plane knows, nil if it was not asked.
	Plane *Plane
	// NotAsked is what could not be asked, each with the reason.
	NotAsked []string
}

// Event is about a pod, or about a part of it.
type Event struct {
	Reason, Note string
	// Part is the container that it is about, "" for the pod.
	Part string
	At   time.Time
}

// Plane is what the control plane knows of a pod.
type Plane struct {
	// Unknown says that it does not know the mesh, "" if it does.
	Unknown string
	// Dataplane and Proxy are nil where it knows none of that name.
	Dataplane *adminv1.Dataplane
	Proxy     *adminv1.Proxy
	// Services are those that the pod is an endpoint of.
	Services []*adminv1.Service
	// Restart is nil for a pod that is not guarded.
	Restart *adminv1.ExplainRestartResponse
}

// Object names the pod in texts.
func (f *Facts) Object() string { return "pod/" + f.Pod.Name + " in namespace " + f.Pod.Namespace }

// injected reports whether the pod has our sidecar.
func (f *Facts) injected() bool { return podspec.IsInjected(&f.Pod.Spec) }

// dataplane is the name of the pod's Dataplane.
func (f *Facts) dataplane() string { return mesh.ObjectDataplane(f.Pod.Namespace, f.Pod.Name) }

// guarded reports whether liveness probes of the pod are guarded.
func (f *Facts) guarded() bool {
	on, err := mesh.ParseSwitch(f.Pod.Annotations[mesh.AnnotationGuardedLiveness])
	return err == nil && on && f.injected()
}

// event returns the newest event of a reason about a part of the pod, nil if there is none.
func (f *Facts) event(reason, part string) *Event {
	return f.eventThat(func(e *Event) bool { return e.Reason == reason && e.Part == part })
}

func (f *Facts) eventThat(is func(*Event) bool) *Event {
	for i := range f.Events {
		if is(&f.Events[i]) {
			return &f.Events[i]
		}
	}
	return nil
}

// condition returns a condition of the pod, nil if it has none of that type.
func (f *Facts) condition(kind corev1.PodConditionType) *corev1.PodCondition {
	return podspec.Condition(f.Pod, kind)
}

// container is one of a pod, with its state.
type container struct {
	*corev1.Container
	status *corev1.ContainerStatus // nil before the kubelet has said anything
	// before says that it has to end, or as a native sidecar to have started, before those that follow.
	before bool
}

// native reports whether it is a native sidecar.
func (c container) native() bool { return c.before && podspec.IsNativeSidecar(c.Container) }

// ours reports whether Sonde has added it.
func (c container) ours() bool {
	return c.Name == mesh.ContainerSidecar || c.Name == mesh.ContainerInit
}

// title names it in texts.
func (c container) title() string {
	if c.before && !c.native() {
		return "init container " + c.Name
	}
	return "container " + c.Name
}

// containers returns those of the pod in the order in which they start.
func (f *Facts) containers() []container {
	var all []container
	add := func(list []corev1.Container, statuses []corev1.ContainerStatus, before bool) {
		for i := range list {
			c := container{Container: &list[i], before: before}
			if at := slices.IndexFunc(statuses, func(s corev1.ContainerStatus) bool { return s.Name == c.Name }); at >= 0 {
				c.status = &statuses[at]
			}
			all = append(all, c)
		}
	}
	add(f.Pod.Spec.InitContainers, f.Pod.Status.InitContainerStatuses, true)
	add(f.Pod.Spec.Containers, f.Pod.Status.ContainerStatuses, false)
	return all
}

// running returns those that stay: all but init containers that end.
func (f *Facts) running() []container {
	return slices.DeleteFunc(f.containers(), func(c container) bool { return c.before && !c.native() })
}

// sidecar returns ours, false if the pod has none.
func (f *Facts) sidecar() (container, bool) {
	all := f.containers()
	i := slices.IndexFunc(all, func(c container) bool { return c.Name == mesh.ContainerSidecar })
	if i < 0 || !f.injected() {
		return container{}, false
	}
	return all[i], true
}

// partOf returns the container of a fieldPath, as events have it: spec.containers{app}.
func partOf(fieldPath string) string {
	_, name, _ := strings.Cut(fieldPath, "{")
	return strings.TrimSuffix(name, "}")
}
