package xds

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// maxUnserved is how many unserved types one stream may request.
const maxUnserved = 16

// addUnserved adds a subscription for an unserved type. The proxy gets a not-found response, as for a missing name,
// since it may still need other types. Its names and versions are not kept.
func (p *proxy) addUnserved(typeURL string) (*subscription, error) {
	switch {
	case typeURL == "":
		return nil, status.Errorf(codes.InvalidArgument, "type_url is missing; served are %s", servedTypes())
	case len(p.unserved) >= maxUnserved:
		return nil, status.Errorf(codes.ResourceExhausted,
			"type_url %.200q is one of more than %d types that are not served; served are %s",
			typeURL, maxUnserved, servedTypes())
	}
	s := &subscription{kind: resource.Type(typeURL), unserved: true}
	p.unserved = append(p.unserved, s)
	return s, nil
}

// requestUnserved makes the next response report these names as not found, and the first response the whole type as
// empty. In the state of the world each request repeats the names, so only the first one is answered.
func (p *proxy) requestUnserved(s *subscription, names []string, first bool) error {
	s.requested = true
	s.responseDue = s.responseDue || first
	p.asked += len(names)
	for _, name := range names {
		if name != wildcard {
			s.setPending(name, update{mustMention: true}, nil)
		}
	}
	if len(s.pending) > maxNames {
		return status.Errorf(codes.ResourceExhausted, "%d names of type %.200q wait for an answer: more than %d",
			len(s.pending), s.kind, maxNames)
	}
	return nil
}
