package mesh

import (
	"cmp"
	"net/netip"
	"time"
)

// ServiceProbe is how the agent checks whether the application behind an inbound can take traffic. It has one handler,
// which determines the form of the other fields: TCP is Kuma's form, any other is like a Kubernetes readiness probe.
// Without a handler it is Kuma's TCP.
type ServiceProbe struct {
	// TCP connects to the application.
	TCP *TCPServiceProbe `json:"tcp,omitempty"`
	// Interval between two checks, with tcp. Default 1s.
	Interval Duration `json:"interval,omitempty"`
	// Timeout of a check, with tcp. Default 2s.
	Timeout Duration `json:"timeout,omitempty"`
	// UnhealthyThreshold is how many checks in a row must fail until the inbound is not ready, with tcp. Default 1.
	// +kubebuilder:validation:Minimum=1
	UnhealthyThreshold int32 `json:"unhealthyThreshold,omitempty"`
	// HealthyThreshold is how many checks in a row must pass until the inbound is ready, with tcp. Default 1.
	// +kubebuilder:validation:Minimum=1
	HealthyThreshold int32 `json:"healthyThreshold,omitempty"`

	// HTTPGet sends a GET request. Its port is by default the inbound's servicePort.
	HTTPGet *HTTPGetProbe `json:"httpGet,omitempty"`
	// TCPSocket connects to a port, by default the inbound's servicePort.
	TCPSocket *TCPSocketProbe `json:"tcpSocket,omitempty"`
	// GRPC calls grpc.health.v1.Health. Its port is by default the inbound's servicePort.
	GRPC *GRPCProbe `json:"grpc,omitempty"`
	// PeriodSeconds between two checks, with httpGet, tcpSocket or grpc. Default 10.
	// +kubebuilder:validation:Minimum=1
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`
	// TimeoutSeconds of a check, with httpGet, tcpSocket or grpc. Default 1.
	// +kubebuilder:validation:Minimum=1
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// FailureThreshold is how many checks in a row must fail until the inbound is not ready, with httpGet, tcpSocket or
	// grpc. Default 3.
	// +kubebuilder:validation:Minimum=1
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
	// SuccessThreshold is how many checks in a row must pass until the inbound is ready, with httpGet, tcpSocket or grpc.
	// Default 1.
	// +kubebuilder:validation:Minimum=1
	SuccessThreshold int32 `json:"successThreshold,omitempty"`
}

// TCPServiceProbe connects to the inbound's serviceAddress and servicePort.
type TCPServiceProbe struct{}

// Defaults of Kuma.
// Source: Kuma's pkg/config/app/kuma-cp/kuma-cp.defaults.yaml, dpServer.hds.checkDefaults.
const (
	defaultProbeInterval  = Duration(time.Second)
	defaultProbeTimeout   = Duration(2 * time.Second)
	defaultProbeThreshold = 1
)

// Defaults of Kubernetes.
// Source: kubernetes pkg/apis/core/v1/defaults.go.
const (
	DefaultPeriodSeconds    = 10
	defaultTimeoutSeconds   = 1
	defaultFailureThreshold = 3
	defaultSuccessThreshold = 1
)

// ProbeTiming is how often checks are made, how long each may take, and how many change the result.
type ProbeTiming struct {
	Period, Timeout                    time.Duration
	FailureThreshold, SuccessThreshold uint32
}

// Timing returns the timing, whatever the form. The defaults must be set.
func (p *ServiceProbe) Timing() ProbeTiming {
	if p.TCP != nil {
		return ProbeTiming{p.Interval.Std(), p.Timeout.Std(), uint32(p.UnhealthyThreshold), uint32(p.HealthyThreshold)}
	}
	return ProbeTiming{
		time.Duration(p.PeriodSeconds) * time.Second, time.Duration(p.TimeoutSeconds) * time.Second,
		uint32(p.FailureThreshold), uint32(p.SuccessThreshold),
	}
}

// ServiceCheck returns the ServiceProbe as a probe of a pod's container, and its target. The defaults must be set, and
// there must be a ServiceProbe.
func (in *Inbound) ServiceCheck() (Probe, netip.AddrPort) {
	s := in.ServiceProbe
	check := s.check()
	check.Type = ProbeReadiness
	if s.TCP != nil {
		check.TCPSocket = &TCPSocketProbe{Port: int32(in.ServicePort)}
	}
	return check, AddrPort(in.ServiceAddress, uint32(check.Port()))
}

// Probed reports whether the agent probes the application behind an inbound of d. In a pod the kubelet does, and an
// Ignored inbound has no endpoint.
func (d *Dataplane) Probed(in *Inbound) bool {
	return in.ServiceProbe != nil && in.State != InboundIgnored && !d.IsPod()
}

// Unchecked reports whether nothing checks the application behind an inbound of d. It gets traffic like a ready one.
func (d *Dataplane) Unchecked(in *Inbound) bool {
	return in.ServiceProbe == nil && in.State != InboundIgnored && !d.IsPod()
}

// check returns a probe with the handlers of Kubernetes' form.
func (p *ServiceProbe) check() Probe {
	return Probe{HTTPGet: p.HTTPGet, TCPSocket: p.TCPSocket, GRPC: p.GRPC}
}

// handlers returns the names of the handlers that are set.
func (p *ServiceProbe) handlers() []string {
	names := p.check().handlerNames()
	if p.TCP != nil {
		names = append([]string{"tcp"}, names...)
	}
	return names
}

// hasSeconds reports whether a field of Kubernetes' form is set, besides a handler.
func (p *ServiceProbe) hasSeconds() bool {
	return cmp.Or(p.PeriodSeconds, p.TimeoutSeconds, p.FailureThreshold, p.SuccessThreshold) != 0
}

// setDefaults sets the fields of the form that the handler belongs to. It does nothing if the form is ambiguous.
func (p *ServiceProbe) setDefaults(servicePort uint32) {
	handlers := p.handlers()
	if len(handlers) == 0 && !p.hasSeconds() {
		p.TCP, handlers = &TCPServiceProbe{}, []string{"tcp"}
	}
	if len(handlers) != 1 {
		return
	}
	if p.TCP != nil {
		p.Interval = cmp.Or(p.Interval, defaultProbeInterval)
		p.Timeout = cmp.Or(p.Timeout, defaultProbeTimeout)
		p.UnhealthyThreshold = cmp.Or(p.UnhealthyThreshold, defaultProbeThreshold)
		p.HealthyThreshold = cmp.Or(p.HealthyThreshold, defaultProbeThreshold)
		return
	}
	p.PeriodSeconds = cmp.Or(p.PeriodSeconds, DefaultPeriodSeconds)
	p.TimeoutSeconds = cmp.Or(p.TimeoutSeconds, defaultTimeoutSeconds)
	p.FailureThreshold = cmp.Or(p.FailureThreshold, defaultFailureThreshold)
	p.SuccessThreshold = cmp.Or(p.SuccessThreshold, defaultSuccessThreshold)
	h := p.check().handler()
	h.setDefaults()
	*h.port() = cmp.Or(*h.port(), int32(min(servicePort, maxPort)))
}
