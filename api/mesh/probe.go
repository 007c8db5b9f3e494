package mesh

import (
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// ProbeType is the type of a probe or hook.
type ProbeType string

// Types of probes and hooks. An entry of the table without a type is a probe.
const (
	ProbeStartup   ProbeType = "startup"
	ProbeLiveness  ProbeType = "liveness"
	ProbeReadiness ProbeType = "readiness"
	ProbePostStart ProbeType = "postStart"
	ProbePreStop   ProbeType = "preStop"
)

// probeTypes are the types that an entry of the table may have.
var probeTypes = []ProbeType{"", ProbeStartup, ProbeLiveness, ProbeReadiness, ProbePostStart, ProbePreStop}

// IsHook reports whether it is a lifecycle hook and not a probe. A hook has effects, and the kubelet calls it with another
// client.
func (t ProbeType) IsHook() bool { return t == ProbePostStart || t == ProbePreStop }

// ProbesMode is where the kubelet asks in the place of a pod's applications (docs/decisions/028-per-port-mode.md).
type ProbesMode string

// Modes of probes.
const (
	// ProbesUnified: the agent answers all probes and hooks, on the virtual port.
	ProbesUnified ProbesMode = "unified"
	// ProbesPerPort: the agent answers HTTP probes and hooks on the virtual port, and each gRPC or TCP probe has a port of its own.
	ProbesPerPort ProbesMode = "per-port"
)

// AllowedProbesMode is FieldError.Allowed of a ProbesMode.
const AllowedProbesMode = "must be unified or per-port"

// ParseProbesMode parses a mode. The error says what is allowed.
func ParseProbesMode(text string) (ProbesMode, error) {
	switch m := ProbesMode(text); m {
	case ProbesUnified, ProbesPerPort:
		return m, nil
	}
	return "", errors.New(AllowedProbesMode)
}

// Schemes of an HTTPGetProbe.
const (
	SchemeHTTP  = "HTTP"
	SchemeHTTPS = "HTTPS"
)

// Probe is a probe or hook as the user wrote it, with named ports resolved. It has exactly one of HTTPGet, TCPSocket
// and GRPC.
type Probe struct {
	// ID is the value of ProbeHeader, unique in the table; "" if the probe is only identified by its path.
	ID string `json:"id,omitempty"`
	// Container it belongs to.
	Container string `json:"container,omitempty"`
	// Type of the probe, "" if it is not known.
	Type ProbeType `json:"type,omitempty"`
	// TimeoutSeconds of one check. Default 1. Hooks have none.
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// VirtualPort is the port of its own that a TCP or gRPC probe has in ProbesPerPort mode, else 0.
	VirtualPort int32 `json:"virtualPort,omitempty"`

	HTTPGet   *HTTPGetProbe   `json:"httpGet,omitempty"`
	TCPSocket *TCPSocketProbe `json:"tcpSocket,omitempty"`
	GRPC      *GRPCProbe      `json:"grpc,omitempty"`
}

// HTTPGetProbe sends a GET request.
type HTTPGetProbe struct {
	// Path as the user wrote it: not escaped, and not cleaned. Default "/".
	Path string `json:"path,omitempty"`
	// Port that is asked.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// Scheme is HTTP (default) or HTTPS.
	Scheme string `json:"scheme,omitempty"`
	// HTTPHeaders in the order of the manifest; names may repeat.
	HTTPHeaders []HTTPHeader `json:"httpHeaders,omitempty"`
}

// HTTPHeader is one header of an HTTPGetProbe.
type HTTPHeader struct {
	// Name of the header.
	Name string `json:"name"`
	// Value of the header, as it is sent.
	Value string `json:"value"`
}

// TCPSocketProbe opens a connection.
type TCPSocketProbe struct {
	// Port that is asked.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

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

// Port returns the port of the application that is probed, 0 without a handler.
func (p Probe) Port() int32 {
	switch {
	case p.HTTPGet != nil:
		return p.HTTPGet.Port
	case p.TCPSocket != nil:
		return p.TCPSocket.Port
	case p.GRPC != nil:
		return p.GRPC.Port
	}
	return 0
}

// URL returns the URL that the kubelet requests. The kubelet parses Path as a URL and keeps its path, query and user; a host
// in it is replaced by host. A Path that is not a URL is used as a plain path.
// Source: kubernetes pkg/probe/http/request.go.
func (g HTTPGetProbe) URL(host string) (*url.URL, error) {
	u, err := url.Parse(g.Path)
	if err != nil {
		u = &url.URL{Path: g.Path}
	}
	u.Scheme = "http"
	if g.Scheme == SchemeHTTPS {
		u.Scheme = "https"
	}
	u.Host = net.JoinHostPort(host, strconv.Itoa(int(g.Port)))
	return url.Parse(u.String()) // formatting and parsing again makes "*" and "a" absolute
}

// Target returns the request target exactly as the kubelet sends it to the application. It is "" for probes other than
// HTTP, and for a path such as "a:b" from which the kubelet makes a URL without a host, which it cannot send.
func (p Probe) Target() string {
	if p.HTTPGet == nil {
		return ""
	}
	u, err := p.HTTPGet.URL("0.0.0.0") // any address: it is not part of the target
	if err != nil || u.Opaque != "" {
		return ""
	}
	return u.RequestURI()
}

// VirtualPath returns the path and query of the probe on the virtual port: /<port><target>, /tcp/<port>, /grpc/<port> or
// /grpc/<port>/<service>. Bytes that the kubelet would not send unchanged are escaped. Probes that differ only in such
// bytes have the same VirtualPath; ProbeHeader tells them apart.
func (p Probe) VirtualPath() string {
	port := strconv.Itoa(int(p.Port()))
	switch {
	case p.TCPSocket != nil:
		return "/tcp/" + port
	case p.GRPC != nil && p.GRPC.Service == "":
		return "/grpc/" + port
	case p.GRPC != nil:
		return "/grpc/" + port + "/" + url.PathEscape(p.GRPC.Service)
	}
	target := p.Target()
	if target == "" {
		target = "/"
	}
	return "/" + port + escapeBytes(target)
}

// escapeBytes escapes bytes that a request line must not contain. A target only contains them in its query, which the
// kubelet sends as the user wrote it.
func escapeBytes(target string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(target) {
		if c := target[i]; c > ' ' && c <= '~' {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String()
}
