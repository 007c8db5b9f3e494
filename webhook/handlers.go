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
	init      bool // the container is an init container, perhaps a native sidecar
	index     int  // of the container in its list
	kind      mesh.ProbeType
	probe     *corev1.Probe            // nil for a hook
	hook      *corev1.LifecycleHandler // nil for a probe
}

// handlersOf returns the probes and hooks of all containers except ours, in the order of the probe table: init containers,
// then containers; for each of them startup, liveness, readiness, postStart, preStop.
func handlersOf(pod *corev1.Pod) (all []handler) {
	for list, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if c := &containers[i]; !isOurs(c.Name) {
				all = append(all, handlersIn(c, list == 0, i)...)
			}
		}
	}
	return all
}

func handlersIn(c *corev1.Container, init bool, index int) (all []handler) {
	for _, p := range []struct {
		kind  mesh.ProbeType
		probe *corev1.Probe
	}{{mesh.ProbeStartup, c.StartupProbe}, {mesh.ProbeLiveness, c.LivenessProbe}, {mesh.ProbeReadiness, c.ReadinessProbe}} {
		if p.probe != nil {
			all = append(all, handler{container: c, init: init, index: index, kind: p.kind, probe: p.probe})
		}
	}
	if c.Lifecycle == nil {
		return all
	}
	for _, h := range []struct {
		kind mesh.ProbeType
		hook *corev1.LifecycleHandler
	}{{mesh.ProbePostStart, c.Lifecycle.PostStart}, {mesh.ProbePreStop, c.Lifecycle.PreStop}} {
		if h.hook != nil {
			all = append(all, handler{container: c, init: init, index: index, kind: h.kind, hook: h.hook})
		}
	}
	return all
}

func isOurs(container string) bool {
	return container == mesh.ContainerSidecar || container == mesh.ContainerInit
}

func isNativeSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// field returns the place of the handler in the pod, for warnings.
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

// actions are the fields of both probes and hooks that say what to do. One of them should be set.
type actions struct {
	exec  *corev1.ExecAction
	http  *corev1.HTTPGetAction
	tcp   *corev1.TCPSocketAction
	grpc  *corev1.GRPCAction
	sleep *corev1.SleepAction
}

func (h handler) actions() actions {
	if p := h.probe; p != nil {
		return actions{exec: p.Exec, http: p.HTTPGet, tcp: p.TCPSocket, grpc: p.GRPC}
	}
	return actions{exec: h.hook.Exec, http: h.hook.HTTPGet, tcp: h.hook.TCPSocket, sleep: h.hook.Sleep}
}

// count returns how many actions are set.
func (a actions) count() (n int) {
	for _, set := range []bool{a.exec != nil, a.http != nil, a.tcp != nil, a.grpc != nil, a.sleep != nil} {
		if set {
			n++
		}
	}
	return n
}

// port returns the number of the target port, as the kubelet would find it, or why there is none.
func (h handler) port() (port int32, why string) {
	a := h.actions()
	name := ""
	switch {
	case a.http != nil:
		port, name = a.http.Port.IntVal, a.http.Port.StrVal
	case a.tcp != nil:
		port, name = a.tcp.Port.IntVal, a.tcp.Port.StrVal
	case a.grpc != nil:
		port = a.grpc.Port
	}
	if name != "" {
		// Like the kubelet, take the first port with the name, whatever its protocol. A number in quotes is not a name that
		// the API server accepts.
		i := slices.IndexFunc(h.container.Ports, func(p corev1.ContainerPort) bool { return p.Name == name })
		if i < 0 {
			return 0, "this container has no port named " + quote(name)
		}
		port = h.container.Ports[i].ContainerPort
	}
	if !isPort(port) {
		return 0, "port " + number(port) + " " + errPort.Error()
	}
	return port, ""
}

// host returns the host that is the target instead of the pod, "" for the pod.
func (h handler) host() string {
	switch a := h.actions(); {
	case a.http != nil:
		return a.http.Host
	case a.tcp != nil:
		return a.tcp.Host
	}
	return ""
}
