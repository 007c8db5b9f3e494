package meshview

import "github.com/sonde-mesh/sonde/api/mesh"

// Health says whether an endpoint may get traffic.
type Health uint8

// Ready endpoints get traffic. Draining endpoints still serve, and get traffic while the service has no ready one, as
// in kube-proxy. NotReady endpoints get no traffic.
const (
	NotReady Health = iota
	Draining
	Ready
)

// Reason says why an endpoint is not Ready.
type Reason uint8

// The reasons, in order of precedence.
const (
	// NoReason applies to endpoints that are Ready, or Draining because their proxy ends or should get no new traffic.
	NoReason Reason = iota
	// DeclaredNotReady means that health.ready of the object is false.
	DeclaredNotReady
	// StateNotReady means that the state of the inbound is NotReady, StateIgnored that it is Ignored: it has no listener.
	StateNotReady
	StateIgnored
	// UnknownDataplane means that the endpoint names a Dataplane that does not exist.
	UnknownDataplane
	// Restarting means that the kubelet restarts all containers of the pod at once.
	Restarting
	// NeverJoined means that no certificate has been issued to the proxy.
	NeverJoined
	// OtherWorkload means that the certificate in use names a different workload than the Dataplane: clients would
	// reject it.
	OtherWorkload
	// ListenerNotAccepted means that Envoy has refused the listener of the inbound, or has not accepted it yet.
	ListenerNotAccepted
	// ApplicationNotReady means that the inbound's serviceProbe has failed, or that the agent has not reported success
	// yet.
	ApplicationNotReady
	// CertificateExpired means that the certificate in use has expired, so that clients of the mesh reject it. The
	// endpoint is Draining: a service whose certificates have all expired, as after a long outage, keeps its endpoints.
	CertificateExpired
	// LivenessHeld means that a guarded liveness probe of the pod fails: the endpoint is Draining.
	LivenessHeld
	// Frozen means that the state of the endpoint differs from the state in Kubernetes, because its node is
	// unreachable, together with most of its zone or of the mesh. The endpoint is Ready, or Draining.
	Frozen
)

// InboundHealth is the health of one inbound of a Dataplane.
type InboundHealth struct {
	Health Health
	// Reason is set if Health is NotReady, and if it is Draining because its certificate has expired or a liveness
	// probe fails.
	Reason Reason
}

// inboundHealth combines the declared health of an inbound with the observations of its proxy. Draining only matters
// for an endpoint that is ready.
func (s *state) inboundHealth(d *mesh.Dataplane, in *mesh.Inbound) InboundHealth {
	o := s.observed[d.ID()]
	switch {
	case in.State == mesh.InboundIgnored:
		return InboundHealth{NotReady, StateIgnored}
	case !in.Health.IsReady():
		return InboundHealth{NotReady, DeclaredNotReady}
	case in.State == mesh.InboundNotReady:
		return InboundHealth{NotReady, StateNotReady}
	case s.requireJoin && !o.Joined:
		return InboundHealth{NotReady, NeverJoined}
	case !WorkloadMatches(d, o):
		return InboundHealth{NotReady, OtherWorkload}
	case !o.Accepts(d, in):
		return InboundHealth{NotReady, ListenerNotAccepted}
	case !o.Serves(d, in):
		return InboundHealth{NotReady, ApplicationNotReady}
	case o.Expired:
		return InboundHealth{Draining, CertificateExpired}
	case o.Draining || o.Administrator != "":
		return InboundHealth{Draining, NoReason}
	case o.Held:
		return InboundHealth{Draining, LivenessHeld}
	default:
		return InboundHealth{Ready, NoReason}
	}
}

// WorkloadMatches reports whether the certificate in use names the workload of the Dataplane. An unknown workload
// counts as a match: records of earlier releases lack it.
func WorkloadMatches(d *mesh.Dataplane, o mesh.Observation) bool {
	return o.Path == "" || o.Path == d.SPIFFEPath()
}

// inboundHealths returns the health of each inbound of the Dataplane, in order.
func (s *state) inboundHealths(d *mesh.Dataplane) []InboundHealth {
	inbounds := d.Spec.Networking.Inbound
	if len(inbounds) == 0 {
		return nil
	}
	all := make([]InboundHealth, len(inbounds))
	for i := range inbounds {
		all[i] = s.inboundHealth(d, &inbounds[i])
	}
	return all
}

// endpointHealth is the health of an endpoint of a Service object.
func endpointHealth(h *mesh.EndpointHealth) InboundHealth {
	switch {
	case h.IsReady():
		return InboundHealth{Ready, NoReason}
	case h.IsServing():
		return InboundHealth{Draining, NoReason}
	default:
		return InboundHealth{NotReady, DeclaredNotReady}
	}
}
