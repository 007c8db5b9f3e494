package webhook

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// action is what a probe or hook does: a mesh.Probe in Kubernetes' form, or what no agent does.
type action struct {
	asks    mesh.Probe         // the handler alone, without its port; empty if no port is asked
	host    string             // that is asked instead of the pod, "" for the pod
	target  intstr.IntOrString // the port that is asked, by number or name
	does    string             // in one line, where asks is empty
	refused string             // why the agent never does it, "" if it does
}

// actionsOf returns the actions of a probe or hook. It should have one.
func actionsOf(probe *corev1.Probe, hook *corev1.LifecycleHandler) (all []action) {
	var h corev1.ProbeHandler
	var sleep *corev1.SleepAction
	if probe != nil {
		h = probe.ProbeHandler
	} else {
		h, sleep = corev1.ProbeHandler{Exec: hook.Exec, HTTPGet: hook.HTTPGet, TCPSocket: hook.TCPSocket}, hook.Sleep
	}
	if a := h.HTTPGet; a != nil {
		get := &mesh.HTTPGetProbe{Path: a.Path, Scheme: string(a.Scheme)}
		for _, header := range a.HTTPHeaders {
			get.HTTPHeaders = append(get.HTTPHeaders, mesh.HTTPHeader{Name: header.Name, Value: header.Value})
		}
		all = append(all, action{asks: mesh.Probe{HTTPGet: get}, host: a.Host, target: a.Port})
	}
	if a := h.TCPSocket; a != nil {
		refused := ""
		if hook != nil {
			refused = "the kubelet does not run tcpSocket hooks"
		}
		all = append(all, action{asks: mesh.Probe{TCPSocket: &mesh.TCPSocketProbe{}}, host: a.Host, target: a.Port, refused: refused})
	}
	if a := h.GRPC; a != nil {
		check := &mesh.GRPCProbe{}
		if a.Service != nil {
			check.Service = *a.Service
		}
		all = append(all, action{asks: mesh.Probe{GRPC: check}, target: intstr.FromInt32(a.Port)})
	}
	if a := h.Exec; a != nil {
		all = append(all, action{does: "exec " + writtenCommand(a.Command), refused: "exec runs in the container"})
	}
	if sleep != nil {
		all = append(all, action{does: fmt.Sprintf("sleep %ds", sleep.Seconds), refused: "sleep asks no application"})
	}
	return all
}

// HandlerOf returns an entry of the probe table as a user writes it.
func HandlerOf(p mesh.Probe) corev1.ProbeHandler {
	port := intstr.FromInt32(p.Port())
	switch {
	case p.TCPSocket != nil:
		return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port}}
	case p.GRPC != nil:
		return corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: p.GRPC.Port, Service: &p.GRPC.Service}}
	}
	get := &corev1.HTTPGetAction{Path: p.HTTPGet.Path, Port: port, Scheme: corev1.URIScheme(p.HTTPGet.Scheme)}
	for _, h := range p.HTTPGet.HTTPHeaders {
		get.HTTPHeaders = append(get.HTTPHeaders, corev1.HTTPHeader{Name: h.Name, Value: h.Value})
	}
	return corev1.ProbeHandler{HTTPGet: get}
}

// written returns the action in one line, to be shown.
func (a action) written() string {
	if a.asks.Protocol() != "" {
		return a.asks.Written(a.host + ":" + a.target.String())
	}
	return cmp.Or(a.does, "unknown")
}

// writtenCommand returns a command, shortened, since it may be a script.
func writtenCommand(words []string) string {
	const longest = 60
	command := []rune(strings.Join(strings.Fields(strings.Join(words, " ")), " "))
	if len(command) <= longest {
		return string(command)
	}
	return string(command[:longest-1]) + "…"
}
