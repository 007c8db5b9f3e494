package webhook

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// action is what a probe or hook does: a mesh.Handler in Kubernetes' form, or what no agent does.
type action struct {
	asks    mesh.Handler       // without the port; nil if no port is asked
	host    string             // that is asked instead of the pod, "" for the pod
	target  intstr.IntOrString // the port that is asked, by number or name
	does    string             // in one line, where asks is nil
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
		all = append(all, action{asks: get, host: a.Host, target: a.Port})
	}
	if a := h.TCPSocket; a != nil {
		refused := ""
		if hook != nil {
			refused = "the kubelet does not run tcpSocket hooks"
		}
		all = append(all, action{asks: &mesh.TCPSocketProbe{}, host: a.Host, target: a.Port, refused: refused})
	}
	if a := h.GRPC; a != nil {
		check := &mesh.GRPCProbe{}
		if a.Service != nil {
			check.Service = *a.Service
		}
		all = append(all, action{asks: check, target: intstr.FromInt32(a.Port)})
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
	switch h := p.Handler().(type) {
	case *mesh.HTTPGetProbe:
		get := &corev1.HTTPGetAction{Path: h.Path, Port: port, Scheme: corev1.URIScheme(h.Scheme)}
		for _, header := range h.HTTPHeaders {
			get.HTTPHeaders = append(get.HTTPHeaders, corev1.HTTPHeader{Name: header.Name, Value: header.Value})
		}
		return corev1.ProbeHandler{HTTPGet: get}
	case *mesh.TCPSocketProbe:
		return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port}}
	case *mesh.GRPCProbe:
		return corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: h.Port, Service: &h.Service}}
	}
	return corev1.ProbeHandler{}
}

// protocol returns what the action speaks to its port, "" if it asks none.
func (a action) protocol() mesh.Protocol {
	if a.asks == nil {
		return ""
	}
	return a.asks.Protocol()
}

// written returns the action in one line, to be shown.
func (a action) written() string {
	switch {
	case a.asks != nil:
		return a.asks.Written(a.host + ":" + a.target.String())
	case a.does != "":
		return a.does
	}
	return "unknown"
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
