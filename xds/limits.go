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
	maxNameLength = 1024   // in bytes, of a resource or a node
)

// check returns the topic of a request, or a gRPC status that says what is wrong with the request.
func (c *client) check(typeURL string, versions int, lists ...[]string) (*topic, error) {
	t := c.topic(resource.Type(typeURL))
	if t == nil {
		return nil, status.Errorf(codes.InvalidArgument, "type_url %.200q is not served; known are %s", typeURL, servedTypes())
	}
	if versions > maxNames {
		return nil, status.Errorf(codes.ResourceExhausted, "%d initial_resource_versions of type %s: more than %d", versions, t.kind.Short(), maxNames)
	}
	for _, list := range lists {
		if len(list) > maxNames {
			return nil, status.Errorf(codes.ResourceExhausted, "%d names of type %s: more than %d", len(list), t.kind.Short(), maxNames)
		}
		i := slices.IndexFunc(list, func(name string) bool { return name == "" || len(name) > maxNameLength })
		if i >= 0 {
			return nil, status.Errorf(codes.InvalidArgument, "name %.80q of type %s: a name has 1 to %d bytes", list[i], t.kind.Short(), maxNameLength)
		}
	}
	return t, nil
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
