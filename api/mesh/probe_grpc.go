package mesh

import (
	"encoding/json"
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

// Name implements Handler.
func (*GRPCProbe) Name() string { return "grpc" }

// Protocol implements Handler.
func (*GRPCProbe) Protocol() Protocol { return ProtocolGRPC }

// At implements Handler.
func (g *GRPCProbe) At(port int32) Probe {
	return Probe{GRPC: &GRPCProbe{Port: port, Service: g.Service}}
}

// Written implements Handler.
func (g *GRPCProbe) Written(target string) string {
	text := g.Name() + " " + target
	if g.Service != "" {
		text += " " + g.Service
	}
	return text
}

// Request implements Handler.
func (g *GRPCProbe) Request(port int32) string {
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

func (d *probeDecoder) grpc(data json.RawMessage) *GRPCProbe {
	var g GRPCProbe
	d.object("grpc.", data, map[string]any{"port": &g.Port, "service": &g.Service})
	return &g
}

func (*GRPCProbe) problems() []error { return nil }

func (g *GRPCProbe) validate(v *violations, path string) {
	v.check(len(g.Service) <= maxProbeService && isPrintable(g.Service), path+".service", Shorten(g.Service, maxShown),
		fmt.Sprintf("must have at most %d visible ASCII characters", maxProbeService))
}
