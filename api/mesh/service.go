package mesh

// Service has the protocol and virtual addresses of a service, and endpoints. Inbounds of Dataplanes with the same
// kuma.io/service are its endpoints, too.
type Service struct {
	Meta
	Spec ServiceSpec `json:"spec"`
}

// ServiceSpec is the spec of a Service.
type ServiceSpec struct {
	// Protocol of the service. Default: that of its inbounds, else tcp.
	Protocol Protocol `json:"protocol,omitempty"`
	// Addresses are virtual ip:port pairs at which redirected applications reach the service.
	Addresses []string `json:"addresses,omitempty"`
	// Headless says that redirected applications reach each endpoint at its own address, ready or not.
	Headless bool `json:"headless,omitempty"`
	// SessionAffinity is None or ClientIP: each caller keeps to one endpoint. Default None.
	SessionAffinity SessionAffinity `json:"sessionAffinity,omitempty"`
	// InternalTrafficPolicy is Cluster or Local: callers reach only the endpoints on their own node, see the label sonde.dev/node.
	// Default Cluster.
	InternalTrafficPolicy InternalTrafficPolicy `json:"internalTrafficPolicy,omitempty"`
	Endpoints             []ServiceEndpoint     `json:"endpoints,omitempty"`
}

// SessionAffinity is whether a caller keeps to one endpoint.
type SessionAffinity string

// Session affinities, as a Service of Kubernetes has them.
const (
	AffinityNone     SessionAffinity = "None"
	AffinityClientIP SessionAffinity = "ClientIP"
)

// InternalTrafficPolicy is which endpoints callers reach.
type InternalTrafficPolicy string

// Internal traffic policies, as a Service of Kubernetes has them.
const (
	TrafficCluster InternalTrafficPolicy = "Cluster"
	TrafficLocal   InternalTrafficPolicy = "Local"
)

// ServiceEndpoint is an endpoint of a service.
type ServiceEndpoint struct {
	// Address is an IP address.
	Address string `json:"address"`
	// Port that clients connect to.
	Port uint32 `json:"port"`
	// Dataplane names the Dataplane that answers at the address: the endpoint then has its sidecar and its identity. An endpoint
	// without one has no sidecar.
	Dataplane string `json:"dataplane,omitempty"`
	// NodeName is the node of the endpoint. Default: the label sonde.dev/node of its Dataplane.
	NodeName string          `json:"nodeName,omitempty"`
	Health   *EndpointHealth `json:"health,omitempty"`
	// Frozen says that Health is not what Kubernetes says, since the node and most others of its zone or of the mesh are not seen. No document has it.
	Frozen bool `json:"-"`
	// Restarting says that Health is that of a pod whose kubelet restarts all its containers at once. No document has it.
	Restarting bool `json:"-"`
}

// EndpointHealth is the health of an endpoint, with the meaning that the conditions of an EndpointSlice have. It alone decides
// about the endpoint: whether an agent has joined does not count.
type EndpointHealth struct {
	// Ready is whether the endpoint may get new traffic. Absent means ready.
	Ready *bool `json:"ready,omitempty"`
	// Serving is whether an endpoint that is not ready can still answer, since it only ends. It gets traffic while the service
	// has no ready endpoint. Absent means no.
	Serving *bool `json:"serving,omitempty"`
}

// IsReady reports whether the endpoint is ready. It is if Health or its field is absent.
func (h *EndpointHealth) IsReady() bool { return h == nil || h.Ready == nil || *h.Ready }

// IsServing reports whether the endpoint can answer.
func (h *EndpointHealth) IsServing() bool { return h.IsReady() || h.Serving != nil && *h.Serving }

// Key implements Object.
func (s *Service) Key() Key { return Key{Kind: KindService, Mesh: s.Mesh, Name: s.Name} }
