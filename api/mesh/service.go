package mesh

// Service names a service and those of its endpoints that have no sidecar. Inbounds of Dataplanes with the same
// kuma.io/service are endpoints of the same service, with one.
type Service struct {
	Meta
	Spec ServiceSpec `json:"spec"`
}

// ServiceSpec is what a Service says; on Kubernetes the spec of the CRD.
type ServiceSpec struct {
	// Protocol of the service. Default: that of its inbounds, else tcp.
	Protocol Protocol `json:"protocol,omitempty"`
	// Addresses are virtual ip:port pairs at which redirected applications reach the service.
	Addresses []string          `json:"addresses,omitempty"`
	Endpoints []ServiceEndpoint `json:"endpoints,omitempty"`
}

// ServiceEndpoint is an endpoint without a sidecar.
type ServiceEndpoint struct {
	Address string  `json:"address"`
	Port    uint32  `json:"port"`
	Health  *Health `json:"health,omitempty"`
}

// Key implements Object.
func (s *Service) Key() Key { return Key{Kind: KindService, Mesh: s.Mesh, Name: s.Name} }
