package xds

import (
	"slices"
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

	maxNames      = 20_000 // per type
	maxNameLength = 1024   // in bytes, of a resource, a node or a type
)

// check returns the subscription of a request, or a gRPC status that says what is wrong with the request.
func (p *proxy) check(typeURL string, versions map[string]string, lists ...[]string) (*subscription, error) {
	s := p.subscription(resource.Type(typeURL))
	if s == nil {
		var err error
		if s, err = p.addUnserved(typeURL); err != nil {
			return nil, err
		}
	}
	if len(versions) > maxNames {
		return nil, status.Errorf(codes.ResourceExhausted, "%d initial_resource_versions of type %s: more than %d", len(versions), s.kind.Short(), maxNames)
	}
	for name := range versions {
		if len(name) > maxNameLength {
			return nil, longName(s, name)
		}
	}
	for _, list := range lists {
		if len(list) > maxNames {
			return nil, status.Errorf(codes.ResourceExhausted, "%d names of type %s: more than %d", len(list), s.kind.Short(), maxNames)
		}
		i := slices.IndexFunc(list, func(name string) bool { return len(name) > maxNameLength })
		if i >= 0 {
			return nil, longName(s, list[i])
		}
	}
	return s, nil
}

func longName(s *subscription, name string) error {
	return status.Errorf(codes.InvalidArgument, "name %.80q of type %s has %d bytes: at most %d are allowed", name, s.kind.Short(), len(name), maxNameLength)
}

// checkNames returns an error if all requests of the stream together subscribe to too many names of a type.
func checkNames(s *subscription) error {
	if s.names.len() > maxNames {
		return status.Errorf(codes.ResourceExhausted, "subscribed to %d names of type %s: more than %d", s.names.len(), s.kind.Short(), maxNames)
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
