package mesh

import (
	"cmp"
	"iter"
)

// Inbound is one port at which the mesh reaches the application.
type Inbound struct {
	// Port that the proxy listens on, or with TransparentProxying the port that is redirected to it.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port uint32 `json:"port"`
	// Name by which the targetPort of a MeshService may select the inbound.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// ServicePort is the application's port. Default Port.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	ServicePort uint32 `json:"servicePort,omitempty"`
	// ServiceAddress is the application's IP address. Default 127.0.0.1, with TransparentProxying Address.
	// +kubebuilder:validation:MaxLength=253
	ServiceAddress string `json:"serviceAddress,omitempty"`
	// Address overrides Networking.Address for this inbound.
	// +kubebuilder:validation:MaxLength=253
	Address string `json:"address,omitempty"`
	// Tags name the service of the inbound, kuma.io/service. Without it, only a MeshService can select the inbound.
	Tags Tags `json:"tags,omitempty"`
	// Protocol of the application: tcp, http, http2 or grpc. Default the tag kuma.io/protocol, else tcp.
	Protocol Protocol `json:"protocol,omitempty"`
	// State is Ready (default), NotReady or Ignored.
	State  InboundState `json:"state,omitempty"`
	Health *Health      `json:"health,omitempty"`
	// ServerFirst marks a protocol in which the server sends first (MySQL, SMTP). In PERMISSIVE mode the port then has
	// no TLS inspector and accepts only plaintext; in STRICT mode it has no effect.
	ServerFirst bool `json:"serverFirst,omitempty"`
	// ServiceProbe makes the agent probe the application, and adds the result to the inbound's health.
	ServiceProbe *ServiceProbe `json:"serviceProbe,omitempty"`
}

// InboundState says how an inbound is used.
type InboundState string

// The states. A NotReady inbound gets no new traffic, like one whose health.ready is false. An Ignored one has no
// listener and is not an endpoint; it only contributes to the proxy's identity.
const (
	InboundReady    InboundState = "Ready"
	InboundNotReady InboundState = "NotReady"
	InboundIgnored  InboundState = "Ignored"
)

// InboundStates lists the states.
func InboundStates() []InboundState {
	return []InboundState{InboundReady, InboundNotReady, InboundIgnored}
}

// AppProtocol returns the application's protocol: Protocol, else the tag kuma.io/protocol, else tcp.
func (in *Inbound) AppProtocol() Protocol {
	return cmp.Or(in.Protocol, Protocol(in.Tags[TagProtocol]), ProtocolTCP)
}

// DeclaredReady reports whether the Dataplane declares that an inbound other than an Ignored one can take traffic.
func (in *Inbound) DeclaredReady() bool { return in.State != InboundNotReady && in.Health.IsReady() }

// ActiveInbounds returns the inbounds that are not Ignored, for which the proxy listens.
func (n *Networking) ActiveInbounds() iter.Seq[*Inbound] {
	return func(yield func(*Inbound) bool) {
		for i := range n.Inbound {
			if in := &n.Inbound[i]; in.State != InboundIgnored && !yield(in) {
				return
			}
		}
	}
}

// Gateway describes the application of a Dataplane that takes traffic from outside the mesh.
type Gateway struct {
	// Type is DELEGATED (default): the application is a separate gateway, which reaches the mesh through the outbounds.
	Type string `json:"type,omitempty"`
	// Tags describe the gateway: kuma.io/service is its identity if there is no label kuma.io/workload.
	Tags Tags `json:"tags,omitempty"`
}

// GatewayDelegated is the only type of a Gateway.
const GatewayDelegated = "DELEGATED"
