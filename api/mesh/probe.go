package mesh

import (
	"net"
	"net/url"
	"strconv"
	"strings"
)

// Names by which the injector, the kubelet and the agent speak of probes.
const (
	// ProbeHeader selects a probe or hook of the table by its id. It is all that a rewritten probe carries.
	ProbeHeader = "Sonde-Probe"
	// EnvProbeTable holds the table in the environment of the sidecar.
	EnvProbeTable = "KUMA_DATAPLANE_PROBES"
	// EnvInstanceIP holds the pod's address in the environment of the sidecar.
	EnvInstanceIP = "INSTANCE_IP"
)

// ProbeType says what the kubelet does with the verdict.
type ProbeType string

// Probes and hooks of a container. An entry of the table that has no type is a probe.
const (
	ProbeStartup   ProbeType = "startup"
	ProbeLiveness  ProbeType = "liveness"
	ProbeReadiness ProbeType = "readiness"
	ProbePostStart ProbeType = "postStart"
	ProbePreStop   ProbeType = "preStop"
)

// IsHook tells a lifecycle hook from a probe: it has effects, and the kubelet runs it with another client.
func (t ProbeType) IsHook() bool { return t == ProbePostStart || t == ProbePreStop }

// Schemes of an HTTPGetProbe.
const (
	SchemeHTTP  = "HTTP"
	SchemeHTTPS = "HTTPS"
)

// Probe is a probe or hook as the user wrote it, with named ports resolved. It has exactly one of HTTPGet, TCPSocket
// and GRPC.
type Probe struct {
	// ID is what ProbeHeader says. It is unique in its table; "" if only the path selects the probe.
	ID string `json:"id,omitempty"`
	// Container it belongs to.
	Container string `json:"container,omitempty"`
	// Type of the probe, "" if it is not known.
	Type ProbeType `json:"type,omitempty"`
	// TimeoutSeconds of one check. Default 1. Hooks have none.
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`

	HTTPGet   *HTTPGetProbe   `json:"httpGet,omitempty"`
	TCPSocket *TCPSocketProbe `json:"tcpSocket,omitempty"`
	GRPC      *GRPCProbe      `json:"grpc,omitempty"`
}

// HTTPGetProbe asks for a path.
type HTTPGetProbe struct {
	// Path as the user wrote it: not escaped, and not cleaned. Default "/".
	Path string `json:"path,omitempty"`
	Port int32  `json:"port"`
	// Scheme is SchemeHTTP or SchemeHTTPS. Default SchemeHTTP.
	Scheme string `json:"scheme,omitempty"`
	// HTTPHeaders in the order of the manifest; names may repeat.
	HTTPHeaders []HTTPHeader `json:"httpHeaders,omitempty"`
}

// HTTPHeader is one header of an HTTPGetProbe.
type HTTPHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// TCPSocketProbe connects.
type TCPSocketProbe struct {
	Port int32 `json:"port"`
}

// GRPCProbe calls grpc.health.v1.Health.
type GRPCProbe struct {
	Port int32 `json:"port"`
	// Service to ask for. Default "".
	Service string `json:"service,omitempty"`
}

// Port of the application that the probe asks, 0 without a handler.
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

// URL returns what the kubelet asks the application for. The path is parsed as a URL, of which path, query and user
// survive: a host in it is replaced by the given one. A path that is no URL is taken as text.
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
	return url.Parse(u.String()) // written and read again: this makes "*" and "a" absolute
}

// Target returns the request target exactly as the kubelet sends it to the application. It is "" for probes other than
// HTTP, and for a path of which the kubelet makes a URL without a host, as of "a:b": it never gets to send that.
func (p Probe) Target() string {
	if p.HTTPGet == nil {
		return ""
	}
	u, err := p.HTTPGet.URL("0.0.0.0") // any address: it is no part of the target
	if err != nil || u.Opaque != "" {
		return ""
	}
	return u.RequestURI()
}

// VirtualPath returns the path, with query, of the probe on the virtual port: /<port><target>, /tcp/<port>,
// /grpc/<port> or /grpc/<port>/<service>. As an httpGet's path it arrives from the kubelet byte for byte: what would not
// survive there is escaped. Probes that differ in that alone have the same VirtualPath: ProbeHeader tells them apart.
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

// escapeBytes escapes what no request line may hold. In a target that can only be in the query, where the kubelet sends
// what the user wrote.
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
