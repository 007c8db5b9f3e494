package mesh

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Schemes of an HTTPGetProbe.
const (
	SchemeHTTP  = "HTTP"
	SchemeHTTPS = "HTTPS"
)

// Protocols of an HTTPGetProbe.
const (
	HTTPGetHTTP1 = "HTTP1"
	HTTPGetHTTP2 = "HTTP2"
)

// HTTPGetProbe sends a GET request.
type HTTPGetProbe struct {
	// Path as the user wrote it: neither escaped nor cleaned. Default "/".
	Path string `json:"path,omitempty"`
	// Port of the request.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// Scheme is HTTP (default) or HTTPS.
	Scheme string `json:"scheme,omitempty"`
	// Protocol is HTTP1 (default), or HTTP2 without TLS.
	Protocol string `json:"protocol,omitempty"`
	// HTTPHeaders in the order of the manifest; names may repeat.
	// +kubebuilder:validation:MaxItems=100
	HTTPHeaders []HTTPHeader `json:"httpHeaders,omitempty"`
}

// HTTPHeader is one header of an HTTPGetProbe.
type HTTPHeader struct {
	// Name of the header.
	Name string `json:"name"`
	// Value of the header, as it is sent.
	Value string `json:"value"`
}

func (*HTTPGetProbe) name() string { return "httpGet" }

func (*HTTPGetProbe) protocol() Protocol { return ProtocolHTTP }

func (g *HTTPGetProbe) at(port int32) Probe {
	at := *g
	at.Port = port
	return Probe{HTTPGet: &at}
}

func (g *HTTPGetProbe) written(target string) string {
	words := []string{g.name()}
	if g.Scheme != "" && g.Scheme != SchemeHTTP {
		words = append(words, g.Scheme)
	}
	if g.Protocol == HTTPGetHTTP2 {
		words = append(words, g.Protocol)
	}
	words = append(words, target)
	if g.Path != "" {
		words = append(words, g.Path)
	}
	return strings.Join(words, " ")
}

func (g *HTTPGetProbe) request(port int32) string {
	text := fmt.Sprintf("GET %s://:%d%s", g.urlScheme(), port, g.Target())
	if g.Protocol == HTTPGetHTTP2 {
		text += " over HTTP/2"
	}
	switch n := len(g.HTTPHeaders); n {
	case 0:
		return text
	case 1:
		return text + " with 1 header"
	default:
		return fmt.Sprintf("%s with %d headers", text, n)
	}
}

func (g *HTTPGetProbe) urlScheme() string {
	if g.Scheme == SchemeHTTPS {
		return "https"
	}
	return "http"
}

// URL returns the URL that the kubelet requests. The kubelet parses Path as a URL and keeps its path, query and user; a
// host in it is replaced by host. A Path that is not a URL is used as a plain path.
// Source: kubernetes pkg/probe/http/request.go.
func (g *HTTPGetProbe) URL(host string) (*url.URL, error) {
	u, err := url.Parse(g.Path)
	if err != nil {
		u = &url.URL{Path: g.Path}
	}
	u.Scheme = g.urlScheme()
	u.Host = net.JoinHostPort(host, strconv.Itoa(int(g.Port)))
	return url.Parse(u.String()) // formatting and parsing again makes "*" and "a" absolute
}

// Target returns the request target exactly as the kubelet sends it to the application. It is "" for a path such
// as "a:b" from which the kubelet makes a URL without a host, which it cannot send.
func (g *HTTPGetProbe) Target() string {
	u, err := g.URL("0.0.0.0") // any address: it is not part of the target
	if err != nil || u.Opaque != "" {
		return ""
	}
	return u.RequestURI()
}

func (g *HTTPGetProbe) port() *int32 { return &g.Port }

func (g *HTTPGetProbe) virtualPath(port string) string {
	target := g.Target()
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

func (g *HTTPGetProbe) setDefaults() {
	if g.Path == "" {
		g.Path = "/"
	}
	if g.Scheme == "" {
		g.Scheme = SchemeHTTP
	}
}

const allowedScheme = "must be HTTP or HTTPS"

func (g *HTTPGetProbe) hasKnownScheme() bool {
	return slices.Contains([]string{SchemeHTTP, SchemeHTTPS}, g.Scheme)
}

// problem implements handler.
func (g *HTTPGetProbe) problem(path string) *FieldError {
	protocol := func(allowed string) *FieldError {
		return &FieldError{Field: path + ".protocol", Value: Shorten(g.Protocol, maxShown), Allowed: allowed}
	}
	switch {
	case !g.hasKnownScheme():
		return &FieldError{Field: path + ".scheme", Value: Shorten(g.Scheme, maxShown), Allowed: allowedScheme}
	case !slices.Contains([]string{"", HTTPGetHTTP1, HTTPGetHTTP2}, g.Protocol):
		return protocol("must be HTTP1 or HTTP2")
	case g.Protocol == HTTPGetHTTP2 && g.Scheme != SchemeHTTP:
		return protocol("must be HTTP1 with scheme HTTPS")
	}
	return nil
}

// validate implements handler. Values of headers are left out of errors, since they may be secret.
func (g *HTTPGetProbe) validate(v *violations, path string) {
	v.check(len(g.Path) <= maxProbePath && isPrintable(g.Path), path+".path", Shorten(g.Path, maxShown),
		fmt.Sprintf("must have at most %d visible ASCII characters", maxProbePath))
	v.check(g.Target() != "", path+".path", Shorten(g.Path, maxShown), "must be a path: no request can be made of this")
	if problem := g.problem(path); problem != nil {
		v.report(problem)
	}
	size := 0
	for i, h := range g.HTTPHeaders {
		field := fmt.Sprintf("%s.httpHeaders[%d]", path, i)
		name := strings.SplitAfterN(h.Name, ":", 2)[0] // the value may be in the name by mistake
		v.check(isHeaderName(h.Name), field+".name", Shorten(name, maxShown), "must be the name of an HTTP header")
		if strings.ContainsFunc(h.Value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			v.report(&FieldError{Field: field + ".value", Allowed: "must have no control characters"})
		}
		size += len(h.Name) + len(h.Value)
	}
	if n := len(g.HTTPHeaders); n > maxProbeHeaders || size > maxProbeHeaderBytes {
		v.add(path+".httpHeaders", fmt.Sprintf("%d headers, %d bytes", n, size),
			fmt.Sprintf("must be at most %d headers with %d bytes in all", maxProbeHeaders, maxProbeHeaderBytes))
	}
}

// isHeaderName reports whether name is a token of HTTP (RFC 9110, 5.6.2).
func isHeaderName(name string) bool { return isOf(name, "!#$%&'*+-.^_`|~") }
