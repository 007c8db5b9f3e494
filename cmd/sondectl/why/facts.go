// Package why finds out why a pod is not ready or gets no traffic: Read and Ask collect facts from the API server and
// the control plane, Judge draws conclusions, and Write prints them.
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

// Facts are the known facts about a pod.
type Facts struct {
	// Now is the time of reading.
	Now time.Time
	Pod *corev1.Pod
	// Events of the pod, the newest first.
	Events []Event
	// Namespace of a pod without Sonde's sidecar, nil if unreadable.
	Namespace *corev1.Namespace
	// Template is the pod template of the pod's owner, nil if it was not read. Owner names the owner.
	Template *corev1.PodTemplateSpec
	Owner    string
	// Injection has the webhook's settings for injection. NoWebhook means that the webhook is not installed.
	Injection webhook.Options
	NoWebhook bool
	// Services of the namespace, and their EndpointSlices. Unread means that they could not be read.
	Services []corev1.Service
	Slices   []discoveryv1.EndpointSlice
	Unread   bool
	// Plane is the control plane's answer, nil if it was not called.
	Plane *Plane
	// NotAsked lists what could not be read, each with the reason.
	NotAsked []string
}

// Event is an event of a pod or of one of its containers.
type Event struct {
	Reason, Note string
	// Part is the container, "" for the pod.
	Part string
	At   time.Time
}

// Plane is the control plane's answer about a pod.
type Plane struct {
	// Unknown is the error for an unknown mesh, "" otherwise.
	Unknown string
	// Dataplane and Proxy are nil if the control plane does not know them.
	Dataplane *adminv1.Dataplane
	Proxy     *adminv1.Proxy
	// Services have the pod as an endpoint.
	Services []*adminv1.Service
	// Restart is nil for a pod without guarded liveness.
	Restart *adminv1.ExplainRestartResponse
}

// Object names the pod for texts.
func (f *Facts) Object() string { return "pod/" + f.Pod.Name + " in namespace " + f.Pod.Namespace }

// injected reports whether the pod has Sonde's sidecar.
func (f *Facts) injected() bool { return podspec.IsInjected(&f.Pod.Spec) }

// dataplane is the name of the pod's Dataplane.
func (f *Facts) dataplane() string { return mesh.ObjectDataplane(f.Pod.Namespace, f.Pod.Name) }

// guarded reports whether liveness probes of the pod are guarded.
func (f *Facts) guarded() bool {
	on, err := mesh.ParseSwitch(f.Pod.Annotations[mesh.AnnotationGuardedLiveness])
	return err == nil && on && f.injected()
}

// event returns the newest event with a reason about a part of the pod, nil without one.
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

// condition returns the pod's condition of a type, nil without one.
func (f *Facts) condition(kind corev1.PodConditionType) *corev1.PodCondition {
	return podspec.Condition(f.Pod, kind)
}

// container is a container of the pod, with its state.
type container struct {
	*corev1.Container
	status *corev1.ContainerStatus // nil before the kubelet's first report
	// before means that later containers wait until this one has ended or, if it is a native sidecar, has started.
	before bool
}

// native reports whether the container is a native sidecar.
func (c container) native() bool { return c.before && podspec.IsNativeSidecar(c.Container) }

// ours reports whether Sonde has added the container.
func (c container) ours() bool {
	return c.Name == mesh.ContainerSidecar || c.Name == mesh.ContainerInit
}

// title names the container in texts.
func (c container) title() string {
	if c.before && !c.native() {
		return "init container " + c.Name
	}
	return "container " + c.Name
}

// containers returns the pod's containers in start order.
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

// running returns the containers that keep running: all except ordinary init containers.
func (f *Facts) running() []container {
	return slices.DeleteFunc(f.containers(), func(c container) bool { return c.before && !c.native() })
}

// sidecar returns Sonde's sidecar, false if the pod has none.
func (f *Facts) sidecar() (container, bool) {
	all := f.containers()
	i := slices.IndexFunc(all, func(c container) bool { return c.Name == mesh.ContainerSidecar })
	if i < 0 || !f.injected() {
		return container{}, false
	}
	return all[i], true
}

// partOf returns the container of a fieldPath in an event: spec.containers{app}.
func partOf(fieldPath string) string {
	_, name, _ := strings.Cut(fieldPath, "{")
	return strings.TrimSuffix(name, "}")
}
