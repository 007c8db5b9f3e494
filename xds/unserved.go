package xds

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// maxUnserved is how many types that are not served one stream may ask for.
const maxUnserved = 16

// addUnserved adds a topic for a type of which there are no resources. A client that asks for such a type is told so, as for
// a name that does not exist: it may need other types nevertheless. Its names and versions are not kept.
func (c *client) addUnserved(typeURL string) (*topic, error) {
	switch {
	case typeURL == "":
		return nil, status.Errorf(codes.InvalidArgument, "type_url is missing; served are %s", servedTypes())
	case len(typeURL) > maxNameLength:
		return nil, status.Errorf(codes.InvalidArgument, "type_url %.80q has %d bytes: at most %d are allowed", typeURL, len(typeURL), maxNameLength)
	case len(c.unserved) >= maxUnserved:
		return nil, status.Errorf(codes.ResourceExhausted, "type_url %.200q is one of more than %d types that are not served; served are %s",
			typeURL, maxUnserved, servedTypes())
	}
	t := &topic{kind: resource.Type(typeURL), unserved: true}
	c.unserved = append(c.unserved, t)
	return t, nil
}

// askUnserved makes the next response say that none of these names exist; first that there is nothing at all. In the state of
// the world each request repeats the names, so only the first one is answered.
func (c *client) askUnserved(t *topic, names []string, first bool) error {
	t.requested = true
	t.answerDue = t.answerDue || first
	for _, name := range names {
		if name != wildcard {
			t.setGap(name, gap{mustAnswer: true}, nil)
		}
	}
	if len(t.gaps) > maxNames {
		return status.Errorf(codes.ResourceExhausted, "%d names of type %.200q wait for an answer: more than %d", len(t.gaps), t.kind, maxNames)
	}
	return nil
}
