//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// clusterCall is a call of a pod to a Service.
type clusterCall struct {
	name, service string
	port          int
	send          string
	// half means that the client closes its sending side after the response.
	half bool
	// want is the result: an HTTP status, an echo, or how the connection ended. meshed is the result if the caller
	// has a sidecar; "" means the same.
	want, meshed string
}

const endOfRequest = " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"

var clusterCalls = []clusterCall{
	{name: "GET", service: "server", port: 80, send: "GET /" + endOfRequest, want: "200"},
	{name: "GET, HTTP/1.0", service: "server", port: 80, send: "GET / HTTP/1.0\r\n\r\n", want: "200"},
	{name: "PROPFIND", service: "server", port: 80, send: "PROPFIND /" + endOfRequest, want: "200"},
	{name: "LIST", service: "server", port: 80, send: "LIST /" + endOfRequest, want: "200"},
	{name: "chunked upload", service: "server", port: 80, want: "200",
		send: "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"},
	{name: "an upgrade that the application ignores", service: "server", port: 80, want: "200",
		send: "GET / HTTP/1.1\r\nHost: h\r\nConnection: close, Upgrade\r\nUpgrade: TLS/1.2\r\n\r\n"},
	{name: "GET, the port's name is grpc-web", service: "names", port: 80, send: "GET /" + endOfRequest, want: "200"},
	{name: "GET, the port's appProtocol is HTTP", service: "names", port: 81, send: "GET /" + endOfRequest, want: "200"},
	{name: "TCP, the client ends its half", service: "server", port: 82, send: "hello", half: true, want: "hello"},
	{name: "TCP to no endpoint", service: "none", port: 82, send: "hello", want: "refused", meshed: "closed"},
	{name: "HTTP to no endpoint", service: "none", port: 80, send: "GET /" + endOfRequest, want: "refused", meshed: "503"},
}

// clusterLoads are calls over kept connections, by the port of the Service.
var clusterLoads = map[string]int{"http": 80, "http2": 80, "post": 80, "grpc": 81, "tcp": 82}

// TestParity makes some of the calls of test/parity between pods: without the mesh, from a pod without a sidecar, and
// between two sidecars. Their results are the same, or as docs/parity.md lists them.
func TestParity(t *testing.T) {
	t.Parallel()
	o, permissive, strict := newNamespace(t, outside), newMesh(t, "PERMISSIVE"), newMesh(t, "STRICT")
	for _, n := range []*namespace{o, permissive, strict} {
		n.create(newPod("server", "node1"), newService("server"), newService("names", otherNames), newService("none"), newPod("client", "node2"))
	}
	ways := map[string]struct {
		from, to *namespace
		meshed   bool
	}{
		"without the mesh": {o, o, false}, "plain caller": {o, permissive, false},
		"between sidecars, PERMISSIVE": {permissive, permissive, true}, "between sidecars, STRICT": {strict, strict, true},
	}
	for name, w := range ways {
		t.Run(name, func(t *testing.T) {
			w.from.waitReady("client")
			w.to.waitReady("server")
			client := w.from.app("client")
			client.waitCall("http://server.%s/", w.to.name)
			for _, c := range clusterCalls {
				want := c.want
				if w.meshed && c.meshed != "" {
					want = c.meshed
				}
				if got := client.raw(fmt.Sprintf("%s.%s:%d", c.service, w.to.name, c.port), c.send, c.half); inOneWord(got) != want {
					t.Errorf("%s: %+v, want %s", c.name, got, want)
				}
			}
			for kind, port := range clusterLoads {
				target := fmt.Sprintf("server.%s:%d", w.to.name, port)
				if kind != "grpc" && kind != "tcp" {
					target = "http://" + target + "/"
				}
				if r := client.startLoad(kind, target).stop(); r.Failed > 0 {
					t.Errorf("%s: %v", kind, r)
				}
			}
		})
	}
}

// otherNames gives the server's HTTP port names that Sonde once treated as gRPC and as TCP.
func otherNames(s *corev1.Service) {
	s.Spec.Selector["app"] = "server"
	s.Spec.Ports = []corev1.ServicePort{
		{Name: "grpc-web", Port: 80, TargetPort: intstr.FromInt32(portHTTP)},
		{Name: "web", Port: 81, TargetPort: intstr.FromInt32(portHTTP), AppProtocol: new("HTTP")},
	}
}

// inOneWord returns the result of a call in one word.
func inOneWord(c called) string {
	status, isHTTP := strings.CutPrefix(c.Body, "HTTP/1.")
	switch {
	case strings.Contains(c.Error, "connection refused"):
		return "refused"
	case c.Error != "":
		return c.Error
	case c.Body == "":
		return "closed"
	case isHTTP:
		return strings.Fields(status)[1]
	}
	return c.Body
}
