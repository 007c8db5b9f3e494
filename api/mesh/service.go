package mesh

// Service has the protocol and virtual addresses of a service, and its endpoints without a sidecar. Inbounds of Dataplanes
// with the same kuma.io/service are its endpoints with a sidecar.
type Service struct {
	Meta
	Spec ServiceSpec `json:"spec"`
}

// ServiceSpec is the spec of a Service.
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
