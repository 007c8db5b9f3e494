package xds

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// Limits of the requests of one stream.
const (
	// maxMessageSize is the limit of one request in bytes. It must be large, since a proxy with 10,000 resources of a type
	// sends all their names and versions when it reconnects.
	maxMessageSize = 4 << 20

	maxNames      = 20_000 // limit per list of a request, and per type
	maxNameLength = 1024   // in bytes, of a resource, a node, a type or a nonce
	// maxVersionEntry is the limit of a name with its version in bytes. Versions are the server's own.
	maxVersionEntry = maxNameLength + 128

	// maxNodeSize is the limit of the description of the node in bytes. Envoy lists all its extensions, about 100 KiB.
	maxNodeSize = 512 << 10
	// maxErrorDetail is the limit of a NACK's reason in bytes. Envoy cuts it to 4 KiB.
	maxErrorDetail = 256 << 10
)

// check returns the subscription of a request, or a gRPC status that tells what is wrong with the request.
func (p *proxy) check(typeURL string) (*subscription, error) {
	if s := p.subscription(resource.Type(typeURL)); s != nil {
		return s, nil
	}
	return p.addUnserved(typeURL)
}

// checkNames returns an error if all requests of the stream together subscribe to too many names of a type.
func checkNames(s *subscription) error {
	if s.names.len() > maxNames {
		return status.Errorf(codes.ResourceExhausted, "subscribed to %d names of type %s: more than %d",
			s.names.len(), s.kind.Short(), maxNames)
	}
	return nil
}

func servedTypes() string {
	var all []string
	for _, s := range resource.Types() {
		all = append(all, string(s))
	}
	return strings.Join(all, ", ")
}
