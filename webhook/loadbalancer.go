package webhook

import (
	"fmt"
	"net/url"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// parseLBDrainTime accepts the same values as the agent.
func parseLBDrainTime(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 || d > mesh.MaxDrainTime {
		return 0, errLBDrainTime
	}
	return d, nil
}

// reserveLBPort reserves the port for load balancers, before the agent's other ports are chosen. An injected pod keeps
// its port.
func (in *injection) reserveLBPort() error {
	port, field := in.settings.lbHealthPort, annotationField(mesh.AnnotationLBHealthPort)
	if in.earlier != nil && port != in.earlier.lbHealthPort {
		return fmt.Errorf("%s: %q: %s already has %s%d", field, in.pod.Annotations[mesh.AnnotationLBHealthPort], mesh.ContainerSidecar,
			mesh.ArgLBHealthPort, in.earlier.lbHealthPort)
	}
	if port == 0 {
		return nil
	}
	if err := in.checkFree(port); err != nil {
		return &mesh.FieldError{Field: field, Value: number(port), Err: err}
	}
	in.used[port] = field
	return nil
}

// forLoadBalancers reports whether a port is the agent's port for load balancers. Probes may also use this port.
func (in *injection) forLoadBalancers(port int32) bool {
	return port != 0 && port == in.settings.lbHealthPort
}

// asksForLoadBalancers returns why a probe of the port for load balancers is not rewritten, and whether to warn.
// dpagent/lb answers at this port.
func (h handler) asksForLoadBalancers() (why string, warn bool) {
	const leftAlone = "the agent answers this port: not rewritten"
	if h.hook != nil { // the kubelet accepts any response
		return leftAlone, false
	}
	restarts := h.kind != mesh.ProbeReadiness
	fails := ", so it always fails and the pod never becomes ready: "
	if restarts {
		fails = ", so it always fails and the kubelet restarts the container again and again: "
	}
	get := h.asks.HTTPGet
	if get == nil {
		port, _ := h.port()
		write := "write httpGet: {path: /livez, port: " + number(port) + "}, or use a port of the application"
		if h.asks.Protocol() == mesh.ProtocolTCP {
			return "the agent always accepts connections to this port, so the probe never fails: " + write, true
		}
		return "the agent answers gRPC at this port with Unimplemented" + fails + write, true
	}
	drains, known := lbPath(get)
	const path = "write path: /livez"
	switch {
	case get.Scheme == mesh.SchemeHTTPS && (!known || drains && restarts):
		return "this port has no TLS" + fails + path + " and scheme: HTTP", true
	case get.Scheme == mesh.SchemeHTTPS:
		return "this port has no TLS" + fails + "write scheme: HTTP", true
	case !known:
		return "at this port the agent only answers /healthz and /livez, and returns 404 for other paths" + fails + path, true
	case drains && restarts:
		return "it fails when the proxy drains, and the kubelet then restarts the container: use /livez", true
	}
	return leftAlone, false
}

// lbPath returns whether a probe requests /healthz, which fails during a drain, and whether the agent serves its path.
// It ignores the query.
func lbPath(get *mesh.HTTPGetProbe) (drains, known bool) {
	u, err := url.ParseRequestURI(get.Target())
	if err != nil {
		return false, false
	}
	drains = u.Path == "/healthz"
	return drains, drains || u.Path == "/livez"
}

// loadBalancerArgs returns the sidecar's arguments for load balancers, and warns if the pod ends before they notice.
func (in *injection) loadBalancerArgs() []string {
	s := in.settings
	if s.lbHealthPort == 0 {
		if _, asked := in.pod.Annotations[mesh.AnnotationLBDrainTime]; asked {
			in.warn("%s: has no effect without %s", annotationField(mesh.AnnotationLBDrainTime), mesh.AnnotationLBHealthPort)
		}
		return nil
	}
	if left := in.grace() - graceReserve; s.lbDrainTime > left {
		in.warn("%s: load balancers need %s to notice that the pod ends, but terminationGracePeriodSeconds only leaves %s", annotationField(mesh.AnnotationLBHealthPort),
			s.lbDrainTime, left)
	}
	return []string{mesh.ArgLBHealthPort + number(s.lbHealthPort), mesh.ArgLBDrainTime + s.lbDrainTime.String()}
}
