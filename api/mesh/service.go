package mesh

// Service has the protocol and virtual addresses of a service, and endpoints. Inbounds of Dataplanes with the same
// kuma.io/service are its endpoints, too.
type Service struct {
	Meta
	Spec ServiceSpec `json:"spec"`
}

// ServiceSpec is the spec of a Service.
type ServiceSpec struct {
	// Protocol of the service. Default: its inbounds' protocol, else tcp.
	Protocol Protocol `json:"protocol,omitempty"`
	// Addresses are virtual ip:port pairs at which redirected applications reach the service.
	Addresses []string `json:"addresses,omitempty"`
	// Headless makes redirected applications reach each endpoint at its own address, ready or not.
	Headless bool `json:"headless,omitempty"`
	// SessionAffinity is None or ClientIP. ClientIP sends all calls of a caller to the same endpoint. Default None.
	SessionAffinity SessionAffinity `json:"sessionAffinity,omitempty"`
	// InternalTrafficPolicy is Cluster or Local; with Local, callers reach only the endpoints on their own node, by the
	// label sonde.dev/node. Default Cluster.
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
	// Dataplane is the name of the Dataplane at the address, whose sidecar and identity the endpoint then has. Without
	// it, the endpoint has no sidecar.
	Dataplane string `json:"dataplane,omitempty"`
	// NodeName is the node of the endpoint. Default: the label sonde.dev/node of its Dataplane.
	NodeName string          `json:"nodeName,omitempty"`
	Health   *EndpointHealth `json:"health,omitempty"`
	// Frozen means that Health differs from Kubernetes, since the node and most others of its zone or of the mesh are
	// unreachable. It is not in documents.
	Frozen bool `json:"-"`
	// Restarting means that Health is for a pod whose kubelet restarts all its containers at once. It is not in
	// documents.
	Restarting bool `json:"-"`
}

// EndpointHealth is the health of an endpoint, with the same meaning as the conditions of an EndpointSlice. Nothing
// else decides about the endpoint, not even whether its agent has joined.
type EndpointHealth struct {
	// Ready is whether the endpoint may get new traffic. Absent means ready.
	Ready *bool `json:"ready,omitempty"`
	// Serving is whether an endpoint that is not ready can still answer, while it terminates. It gets traffic while the
	// service has no ready endpoint. Absent means no.
	Serving *bool `json:"serving,omitempty"`
}

// IsReady reports whether the endpoint is ready. It is if Health or its field is absent.
func (h *EndpointHealth) IsReady() bool { return h == nil || h.Ready == nil || *h.Ready }

// IsServing reports whether the endpoint can answer.
func (h *EndpointHealth) IsServing() bool { return h.IsReady() || h.Serving != nil && *h.Serving }

// Key implements Object.
func (s *Service) Key() Key { return Key{Kind: KindService, Mesh: s.Mesh, Name: s.Name} }
