package webhook

import (
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/execwire"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// Volumes of a pod with guarded exec probes, and where the containers of the probes have them.
const (
	volumeExecHelper  = "sonde-exec"
	volumeExecSockets = "sonde-exec-sockets"
	mountExecHelper   = "/.sonde/exec"
	mountExecSocket   = "/.sonde/socket"
)

// execVolumes hold the helper, which only the sidecar writes, and the sockets. A container that fills the volume of the
// sockets uses its own memory.
var execVolumes = []corev1.Volume{
	{Name: volumeExecHelper, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
		SizeLimit: new(resource.MustParse("16Mi")),
	}}},
	{Name: volumeExecSockets, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
		Medium: corev1.StorageMediumMemory, SizeLimit: new(resource.MustParse("1Mi")),
	}}},
}

// execMounts are the sidecar's.
var execMounts = []corev1.VolumeMount{
	{Name: volumeExecHelper, MountPath: mesh.ExecHelperDir},
	{Name: volumeExecSockets, MountPath: mesh.ExecSocketsDir},
}

// ofKruise reports whether the user has set an OpenKruise annotation: its guarded liveness covers exec probes.
func (in *injection) ofKruise() bool {
	if in.earlier != nil { // which has written such annotations, and what it has decided
		return false
	}
	_, hasContext := in.pod.Annotations[mesh.AnnotationProbeContext]
	return hasContext || in.pod.Annotations[mesh.AnnotationEnhancedLiveness] == "true"
}

// hasExec reports whether the agent answers an exec probe.
func (in *injection) hasExec() bool {
	return slices.ContainsFunc(in.table, func(p mesh.Probe) bool { return p.Exec != nil })
}

// execObstacle returns why the agent cannot have an exec probe run in its container, "" if it can.
func (in *injection) execObstacle(h handler) string {
	var why string
	switch {
	case !in.enabled:
		why = mesh.AnnotationVirtualProbes + " is disabled"
	case in.form != Native:
		why = mesh.ContainerSidecar + " is an ordinary container here, before which this one may start"
	case h.init && !podspec.IsNativeSidecar(h.container):
		why = "an init container that ends has no probes"
	default:
		_, why = in.starterOf(h)
		switch {
		case why == "" && in.earlier == nil:
			return ""
		case why == "":
			why = "the sidecar that the pod has already lacks what it needs"
		}
	}
	return runsInContainer + ", and " + why + ": left as it is"
}

// starter is what the kubelet runs when a container starts, and which starts the helper.
type starter struct {
	path  string                     // in the container
	value func(command []string) any // that is there
	then  []string                   // the user's command, nil if the starter is ours
	probe bool                       // it is a startup probe of ours
}

// asIs is starter.value of a command of the user's.
func asIs(command []string) any { return command }

// starterOf returns what starts the helper of an exec probe, or why nothing can. The user's startup probe or postStart
// hook starts it if it is exec; ours does if the user has none.
func (in *injection) starterOf(h handler) (s starter, why string) {
	var postStart *corev1.LifecycleHandler
	startup, lifecycle := h.container.StartupProbe, h.container.Lifecycle
	if lifecycle != nil {
		postStart = lifecycle.PostStart
	}
	run := func(command []string) *corev1.ExecAction { return &corev1.ExecAction{Command: command} }
	hook := func(command []string) *corev1.LifecycleHandler { return &corev1.LifecycleHandler{Exec: run(command)} }
	hooks := !isExpanded(h.asks.Exec.Command)
	switch {
	case startup != nil && isExec(startup.Exec):
		return starter{path: "/startupProbe/exec/command", value: asIs, then: startup.Exec.Command}, ""
	case hooks && postStart != nil && isExec(postStart.Exec):
		return starter{path: "/lifecycle/postStart/exec/command", value: asIs, then: postStart.Exec.Command}, ""
	case startup == nil:
		return starter{path: "/startupProbe", probe: true, value: func(command []string) any {
			return &corev1.Probe{ // which is not to restart the container, whatever happens
				ProbeHandler: corev1.ProbeHandler{Exec: run(command)}, PeriodSeconds: 1, TimeoutSeconds: 10,
				FailureThreshold: math.MaxInt32,
			}
		}}, ""
	case hooks && lifecycle == nil:
		return starter{path: "/lifecycle", value: func(command []string) any { return &corev1.Lifecycle{PostStart: hook(command)} }}, ""
	case hooks && postStart == nil:
		return starter{path: "/lifecycle/postStart", value: func(command []string) any { return hook(command) }}, ""
	case !hooks:
		return s, "only an exec startupProbe could start a helper for a command with $( or $$, which the kubelet replaces"
	}
	return s, "neither its startupProbe nor its postStart hook is exec, which could start a helper"
}

// isExec reports whether there is a command to run.
func isExec(a *corev1.ExecAction) bool { return a != nil && len(a.Command) > 0 }

// isExpanded reports whether the kubelet expands variables in the command of a probe. It expands none in a hook's.
// Source: kubernetes pkg/kubelet/prober/prober.go, pkg/kubelet/lifecycle/handlers.go.
func isExpanded(command []string) bool {
	return slices.ContainsFunc(command, func(word string) bool {
		return strings.Contains(word, "$(") || strings.Contains(word, "$$")
	})
}

// addHelper has the helper started in the container of an exec probe.
func (in *injection) addHelper(h handler, p mesh.Probe) {
	if p.Exec == nil {
		return
	}
	container := strings.TrimSuffix(h.path(), "/livenessProbe")
	s, _ := in.starterOf(h)
	start := execwire.Start{
		Directory: mountExecSocket, Peer: mesh.SidecarUser, Timeout: time.Duration(p.TimeoutSeconds) * time.Second,
		Command: p.Exec.Command, Then: s.then, Retried: s.probe,
	}
	command := append([]string{mountExecHelper + "/" + execwire.Program}, start.Args(execwire.ModeStart)...)
	in.patch.add(container+s.path, s.value(command))
	insert(&in.patch, container+"/volumeMounts", len(h.container.VolumeMounts), "-",
		corev1.VolumeMount{Name: volumeExecHelper, MountPath: mountExecHelper, ReadOnly: true},
		corev1.VolumeMount{Name: volumeExecSockets, MountPath: mountExecSocket, SubPath: h.container.Name})
}
