package mesh

import (
	"fmt"
	"net/url"
	"slices"
)

// GRPCProbe calls grpc.health.v1.Health.
type GRPCProbe struct {
	// Port of the server.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// Service to check. Default "".
	Service string `json:"service,omitempty"`
	// Mode is Plaintext (default), or TLS, whose certificate is not verified.
	Mode string `json:"mode,omitempty"`
}

// Modes of a GRPCProbe.
const (
	GRPCModePlaintext = "Plaintext"
	GRPCModeTLS       = "TLS"
)

// problem implements handler.
func (g *GRPCProbe) problem(path string) *FieldError {
	if slices.Contains([]string{"", GRPCModePlaintext, GRPCModeTLS}, g.Mode) {
		return nil
	}
	return &FieldError{Field: path + ".mode", Value: Shorten(g.Mode, maxShown), Allowed: "must be Plaintext or TLS"}
}

func (*GRPCProbe) name() string { return "grpc" }

func (*GRPCProbe) protocol() Protocol { return ProtocolGRPC }

func (g *GRPCProbe) at(port int32) Probe {
	at := *g
	at.Port = port
	return Probe{GRPC: &at}
}

func (g *GRPCProbe) written(target string) string {
	text := g.name()
	if g.Mode == GRPCModeTLS {
		text += " " + g.Mode
	}
	text += " " + target
	if g.Service != "" {
		text += " " + g.Service
	}
	return text
}

func (g *GRPCProbe) request(port int32) string {
	text := fmt.Sprintf("gRPC health of %q at :%d", g.Service, port)
	if g.Mode == GRPCModeTLS {
		text += " over TLS"
	}
	return text
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
	if problem := g.problem(path); problem != nil {
		v.report(problem)
	}
}
