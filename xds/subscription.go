package xds

import (
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// wildcard is the name that subscribes to all resources of a type.
const wildcard = "*"

// subscription is one type of resource on one stream.
//
// It does not store what the proxy has of each name. The proxy has the desired version of every name that it subscribes
// to, except for the names in pending. So an idle stream stores nothing per resource but the names of its subscription.
type subscription struct {
	kind resource.Type

	unserved    bool // there are no resources of this type
	requested   bool // the proxy has requested this type
	hasAnswered bool // the proxy has ACKed or NACKed a response
	wildcard    bool
	named       bool // SotW: a request had names, so a later one without names means none, not all
	names       *names
	pending     map[string]update
	held        map[string]update // removals that wait, see removal.go; no name is also in pending
	heldUntil   time.Time         // when the first of them is due; zero if there are none

	refused map[string]*refusals // versions that the proxy has refused, by name

	inFlight    []*response // neither ACKed nor NACKed, in the order in which they were sent
	responseDue bool        // the proxy waits for a response, even an empty one
	lastNonce   string      // of the last response that was sent
	acked       string      // the nonce of the last response that was ACKed
}

// update is what has to be sent about one name, since the proxy has another version of it, or needs a response about it.
type update struct {
	version     string             // that the proxy has; empty if it has none
	last        *resource.Resource // the resource of that version; nil if only initial_resource_versions told about it
	now         *resource.Resource // what the proxy should have; nil for nothing
	wanted      *resource.Resource // with now nil: what it should have had before, if last is not known
	mustMention bool               // a response must mention the name, even if nothing differs
	uncertain   bool               // it may have another version: it refused a response with the name, or gave no version
	mayUse      string             // a version that it may use and has not ACKed: the response was refused, perhaps because of others
	suspect     int                // send it only with others of this group, to learn which one the proxy refuses; 0: no suspect
	due         time.Time          // when a removal may be sent; zero if that is not known yet
}

func updateFrom(has *resource.Resource) update { return update{version: versionOf(has), last: has} }

func versionOf(r *resource.Resource) string {
	if r == nil {
		return ""
	}
	return r.Version
}

func (s *subscription) subscribes(name string) bool { return s.wildcard || s.names.has(name) }

// update returns the update of name, whether or not it is held.
func (s *subscription) update(name string) (update, bool) {
	if u, ok := s.pending[name]; ok {
		return u, true
	}
	u, ok := s.held[name]
	return u, ok
}

// setPending stores what has to be sent about a name, or drops it if that is nothing. now is what the proxy should have.
func (s *subscription) setPending(name string, u update, now *resource.Resource) {
	delete(s.held, name)
	if u.mustMention || u.uncertain || u.version != versionOf(now) {
		if s.pending == nil {
			s.pending = map[string]update{}
		}
		if now != nil {
			u.due = time.Time{}
		}
		u.now = now
		s.pending[name] = u
		return
	}
	s.dropPending(name)
}

// reservePending makes room for n updates if there are none, so that the map does not grow step by step.
func (s *subscription) reservePending(n int) {
	if s.pending == nil && n > 0 {
		s.pending = make(map[string]update, n)
	}
}

// dropPending drops what has to be sent about a name. It also drops an empty map, since a map never shrinks.
func (s *subscription) dropPending(name string) {
	delete(s.held, name)
	delete(s.pending, name)
	if len(s.pending) == 0 {
		s.pending = nil
	}
}

// dropUnless drops what has to be sent about all names but those that keep.
func (s *subscription) dropUnless(keep func(name string) bool) {
	for _, updates := range []map[string]update{s.pending, s.held} {
		for name := range updates {
			if !keep(name) {
				s.dropPending(name)
			}
		}
	}
}

// action is what to send about one name.
type action struct {
	send     *resource.Resource
	remove   bool // the proxy has it, but should not
	notFound bool // the proxy waits for a resource that does not exist
}

func (s *subscription) action(u update) action {
	switch {
	case u.now != nil && !s.refuses(u.now):
		return action{send: u.now}
	case u.now != nil && u.mustMention && s.lastGood(u) != nil:
		return action{send: s.lastGood(u)}
	case u.now != nil && u.mustMention && u.version != "":
		return action{send: u.now} // it has a good version that the server does not know: its next NACK answers it, a removal would not be true
	case u.now != nil:
		return action{notFound: u.mustMention}
	case u.version != "" || u.uncertain:
		return action{remove: true}
	}
	return action{notFound: u.mustMention}
}
