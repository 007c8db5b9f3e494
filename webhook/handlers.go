package webhook

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// handler is one probe or hook of a container.
type handler struct {
	container *corev1.Container
	init      bool // the container is an init container, possibly a native sidecar
	index     int  // index of the container in its list
	kind      mesh.ProbeType
	probe     *corev1.Probe            // nil for a hook
	hook      *corev1.LifecycleHandler // nil for a probe
	unread    unread                   // hook handler
	actions   int                      // number of actions
	action                             // first action
}

// handlersOf returns the probes and hooks of all containers except Sonde's, in the order of the probe table: init
// containers, then containers; for each of them startup, liveness, readiness, postStart, preStop.
func handlersOf(pod *corev1.Pod, unknown unknownFields) (all []handler) {
	for list, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if c := &containers[i]; !isOurs(c.Name) {
				all = append(all, handlersIn(c, unknown, list == 0, i)...)
			}
		}
	}
	return all
}

func handlersIn(c *corev1.Container, unknown unknownFields, init bool, index int) (all []handler) {
	add := func(kind mesh.ProbeType, probe *corev1.Probe, hook *corev1.LifecycleHandler) {
		if probe == nil && hook == nil {
			return
		}
		h := handler{
			container: c, init: init, index: index, kind: kind, probe: probe, hook: hook, unread: unknown.of(probe, hook),
		}
		h.readActions()
		all = append(all, h)
	}
	add(mesh.ProbeStartup, c.StartupProbe, nil)
	add(mesh.ProbeLiveness, c.LivenessProbe, nil)
	add(mesh.ProbeReadiness, c.ReadinessProbe, nil)
	if l := c.Lifecycle; l != nil {
		add(mesh.ProbePostStart, nil, l.PostStart)
		add(mesh.ProbePreStop, nil, l.PreStop)
	}
	return all
}

func isOurs(container string) bool {
	return container == mesh.ContainerSidecar || container == mesh.ContainerInit
}

// field returns the path of the handler in the pod, for warnings.
func (h handler) field() string {
	field := "lifecycle." + string(h.kind)
	if h.probe != nil {
		field = string(h.kind) + "Probe"
	}
	return "containers[" + h.container.Name + "]." + field
}

// path returns the JSON pointer of the handler.
func (h handler) path() string {
	list := pathContainers
	if h.init {
		list = pathInitContainers
	}
	path := list + "/" + strconv.Itoa(h.index)
	if h.hook != nil {
		return path + "/lifecycle/" + string(h.kind)
	}
	return path + "/" + string(h.kind) + "Probe"
}

// port returns the number of the target port like the kubelet, or an error.
func (h handler) port() (port int32, why string) {
	port = h.target.IntVal
	if name := h.target.StrVal; name != "" {
		// Like the kubelet, use the first port with the name, for any protocol. The API server does not accept a number in
		// quotes as a name.
		i := slices.IndexFunc(h.container.Ports, func(p corev1.ContainerPort) bool { return p.Name == name })
		if i < 0 {
			return 0, "this container has no port named " + quote(name)
		}
		port = h.container.Ports[i].ContainerPort
	}
	if !isPort(port) {
		return 0, "port " + number(port) + " " + mesh.AllowedPort
	}
	return port, ""
}
