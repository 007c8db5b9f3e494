package webhook

import (
	"fmt"
	"net/url"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// parseLBDrainTime accepts what the agent accepts.
func parseLBDrainTime(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 || d > mesh.MaxDrainTime {
		return 0, errLBDrainTime
	}
	return d, nil
}

// reserveLBPort takes the port for load balancers, before the agent gets its others. A pod that has a sidecar keeps its port.
func (in *injection) reserveLBPort() error {
	port, field := in.settings.lbHealthPort, annotationField(mesh.AnnotationLBHealthPort)
	if in.earlier != nil && port != in.earlier.lbHealthPort {
		return fmt.Errorf("%s: %q: %s has %s%d already", field, in.pod.Annotations[mesh.AnnotationLBHealthPort], mesh.ContainerSidecar,
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

// forLoadBalancers says whether a port is that of the agent for load balancers. The kubelet may ask there, too.
func (in *injection) forLoadBalancers(port int32) bool {
	return port != 0 && port == in.settings.lbHealthPort
}

// asksForLoadBalancers returns why a probe of the port for load balancers is left alone, and whether that is worth a warning. What the port
// answers is in dpagent/lb.
func (h handler) asksForLoadBalancers() (why string, warn bool) {
	const leftAlone = "the agent answers there: left as it is"
	if h.hook != nil { // the kubelet takes any answer
		return leftAlone, false
	}
	restarts := h.kind != mesh.ProbeReadiness
	fails := ", so that it always fails and the pod never becomes ready: "
	if restarts {
		fails = ", so that it always fails and the kubelet restarts the container again and again: "
	}
	get := h.asks.HTTPGet
	if get == nil {
		port, _ := h.port()
		write := "write httpGet: {path: /livez, port: " + number(port) + "}, or ask a port of the application"
		if h.asks.Protocol() == mesh.ProtocolTCP {
			return "the agent accepts connections there whatever becomes of application and proxy, so that it cannot fail: " + write, true
		}
		return "the agent answers gRPC there with Unimplemented" + fails + write, true
	}
	drains, known := lbPath(get)
	const path = "write path: /livez"
	switch {
	case get.Scheme == mesh.SchemeHTTPS && (!known || drains && restarts):
		return "that port has no TLS" + fails + path + " and scheme: HTTP", true
	case get.Scheme == mesh.SchemeHTTPS:
		return "that port has no TLS" + fails + "write scheme: HTTP", true
	case !known:
		return "the agent answers /healthz and /livez there, and 404 to anything else" + fails + path, true
	case drains && restarts:
		return "it fails when the proxy drains, and the kubelet then restarts the container: /livez does not", true
	}
	return leftAlone, false
}

// lbPath returns whether a probe asks /healthz, which fails in a drain, and whether the agent knows its path at all. The query does not count.
func lbPath(get *mesh.HTTPGetProbe) (drains, known bool) {
	u, err := url.ParseRequestURI(get.Target())
	if err != nil {
		return false, false
	}
	drains = u.Path == "/healthz"
	return drains, drains || u.Path == "/livez"
}

// loadBalancerArgs returns the arguments of the sidecar for load balancers, and warns where the pod ends too early for them.
func (in *injection) loadBalancerArgs() []string {
	s := in.settings
	if s.lbHealthPort == 0 {
		if _, asked := in.pod.Annotations[mesh.AnnotationLBDrainTime]; asked {
			in.warn("%s: it has no effect without %s", annotationField(mesh.AnnotationLBDrainTime), mesh.AnnotationLBHealthPort)
		}
		return nil
	}
	if left := in.grace() - graceReserve; s.lbDrainTime > left {
		in.warn("%s: load balancers have %s to notice that the pod goes, and terminationGracePeriodSeconds leaves %s", annotationField(mesh.AnnotationLBHealthPort),
			s.lbDrainTime, left)
	}
	return []string{mesh.ArgLBHealthPort + number(s.lbHealthPort), mesh.ArgLBDrainTime + s.lbDrainTime.String()}
}
