package mesh

import (
	"fmt"
	"net/url"
)

// GRPCProbe calls grpc.health.v1.Health.
type GRPCProbe struct {
	// Port that is asked.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// Service to ask for. Default "".
	Service string `json:"service,omitempty"`
}

func (*GRPCProbe) name() string { return "grpc" }

func (*GRPCProbe) protocol() Protocol { return ProtocolGRPC }

func (g *GRPCProbe) at(port int32) Probe {
	return Probe{GRPC: &GRPCProbe{Port: port, Service: g.Service}}
}

func (g *GRPCProbe) written(target string) string {
	text := g.name() + " " + target
	if g.Service != "" {
		text += " " + g.Service
	}
	return text
}

func (g *GRPCProbe) request(port int32) string {
	return fmt.Sprintf("gRPC health of %q at :%d", g.Service, port)
}

func (g *GRPCProbe) port() *int32 { return &g.Port }

func (g *GRPCProbe) virtualPath(port string) string {
	path := "/grpc/" + port
	if g.Service != "" {
		path += "/" + url.PathEscape(g.Service)
	}
	return path
}

func (*GRPCProbe) setDefaults() {}

func (g *GRPCProbe) validate(v *violations, path string) {
	v.check(len(g.Service) <= maxProbeService && isPrintable(g.Service), path+".service", Shorten(g.Service, maxShown),
		fmt.Sprintf("must have at most %d visible ASCII characters", maxProbeService))
}
