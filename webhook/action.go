package webhook

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// runsInContainer is the reason why the agent does not answer exec probes.
const runsInContainer = "exec runs in the container"

// action is the handler of a probe or hook: a mesh.Probe with Kubernetes' port names, or an action that agents do not
// support.
type action struct {
	asks    mesh.Probe         // the handler alone, without its port; empty for sleep, and what is not known
	host    string             // that is asked instead of the pod, "" for the pod
	target  intstr.IntOrString // the port that is asked, by number or name
	sleep   *corev1.SleepAction
	refused string // why agents never perform the action, "" if they do
}

// readActions sets the number of actions of a probe or hook, which should be one, and the first action.
func (h *handler) readActions() {
	add := func(a action) {
		if h.actions++; h.actions == 1 {
			h.action = a
		}
	}
	var does corev1.ProbeHandler
	if h.probe != nil {
		does = h.probe.ProbeHandler
	} else {
		does = corev1.ProbeHandler{Exec: h.hook.Exec, HTTPGet: h.hook.HTTPGet, TCPSocket: h.hook.TCPSocket}
	}
	if a := does.HTTPGet; a != nil {
		get := &mesh.HTTPGetProbe{Path: a.Path, Scheme: string(a.Scheme), Protocol: textOf(a.Protocol)}
		for _, header := range a.HTTPHeaders {
			get.HTTPHeaders = append(get.HTTPHeaders, mesh.HTTPHeader{Name: header.Name, Value: header.Value})
		}
		add(action{asks: mesh.Probe{HTTPGet: get}, host: a.Host, target: a.Port})
	}
	if a := does.TCPSocket; a != nil {
		refused := ""
		if h.hook != nil {
			refused = "the kubelet does not run tcpSocket hooks"
		}
		add(action{asks: mesh.Probe{TCPSocket: &mesh.TCPSocketProbe{}}, host: a.Host, target: a.Port, refused: refused})
	}
	if a := does.GRPC; a != nil {
		check := &mesh.GRPCProbe{Service: textOf(a.Service), Mode: textOf(a.Mode)}
		add(action{asks: mesh.Probe{GRPC: check}, target: intstr.FromInt32(a.Port)})
	}
	if does.Exec != nil {
		add(action{asks: mesh.Probe{Exec: &mesh.ExecProbe{Command: does.Exec.Command}}, refused: runsInContainer})
	}
	if h.hook != nil && h.hook.Sleep != nil {
		add(action{sleep: h.hook.Sleep, refused: "sleep sends no request"})
	}
}

// textOf returns "" for a missing field.
func textOf[T ~string](field *T) string {
	if field == nil {
		return ""
	}
	return string(*field)
}

// optional returns nil for "".
func optional[T ~string](text string) *T {
	if text == "" {
		return nil
	}
	return new(T(text))
}

// HandlerOf returns the user's form of an entry of the probe table.
func HandlerOf(p mesh.Probe) corev1.ProbeHandler {
	port := intstr.FromInt32(p.Port())
	return mesh.MatchHandler(p,
		func(h *mesh.HTTPGetProbe) corev1.ProbeHandler {
			get := &corev1.HTTPGetAction{
				Path: h.Path, Port: port, Scheme: corev1.URIScheme(h.Scheme), Protocol: optional[corev1.HTTPProtocol](h.Protocol),
			}
			for _, header := range h.HTTPHeaders {
				get.HTTPHeaders = append(get.HTTPHeaders, corev1.HTTPHeader{Name: header.Name, Value: header.Value})
			}
			return corev1.ProbeHandler{HTTPGet: get}
		},
		func(*mesh.TCPSocketProbe) corev1.ProbeHandler {
			return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port}}
		},
		func(h *mesh.GRPCProbe) corev1.ProbeHandler {
			return corev1.ProbeHandler{
				GRPC: &corev1.GRPCAction{Port: h.Port, Service: &h.Service, Mode: optional[corev1.GRPCProbeMode](h.Mode)},
			}
		},
		func(h *mesh.ExecProbe) corev1.ProbeHandler {
			return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: h.Command}}
		},
	)
}

// written describes the action in one line.
func (a action) written() string {
	switch {
	case a.sleep != nil:
		return fmt.Sprintf("sleep %ds", a.sleep.Seconds)
	case a.asks.Exec != nil || a.asks.Protocol() != "":
		return a.asks.Written(a.host + ":" + a.target.String())
	}
	return "unknown"
}
