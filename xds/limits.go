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

// check returns the topic of a request, or a gRPC status that says what is wrong with the request.
func (c *client) check(typeURL string, versions map[string]string, lists ...[]string) (*topic, error) {
	t := c.topic(resource.Type(typeURL))
	if t == nil {
		var err error
		if t, err = c.addUnserved(typeURL); err != nil {
			return nil, err
		}
	}
	if len(versions) > maxNames {
		return nil, status.Errorf(codes.ResourceExhausted, "%d initial_resource_versions of type %s: more than %d", len(versions), t.kind.Short(), maxNames)
	}
	for name := range versions {
		if len(name) > maxNameLength {
			return nil, longName(t, name)
		}
	}
	for _, list := range lists {
		if len(list) > maxNames {
			return nil, status.Errorf(codes.ResourceExhausted, "%d names of type %s: more than %d", len(list), t.kind.Short(), maxNames)
		}
		i := slices.IndexFunc(list, func(name string) bool { return len(name) > maxNameLength })
		if i >= 0 {
			return nil, longName(t, list[i])
		}
	}
	return t, nil
}

func longName(t *topic, name string) error {
	return status.Errorf(codes.InvalidArgument, "name %.80q of type %s has %d bytes: at most %d are allowed", name, t.kind.Short(), len(name), maxNameLength)
}

// checkNames returns an error if all requests of the stream together subscribe to too many names of a type.
func checkNames(t *topic) error {
	if t.names.len() > maxNames {
		return status.Errorf(codes.ResourceExhausted, "subscribed to %d names of type %s: more than %d", t.names.len(), t.kind.Short(), maxNames)
	}
	return nil
}

func servedTypes() string {
	var all []string
	for _, t := range resource.Types() {
		all = append(all, string(t))
	}
	return strings.Join(all, ", ")
}
