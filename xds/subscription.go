package xds

import (
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// wildcard is the name that subscribes to all resources of a type.
const wildcard = "*"

// subscription is one type of resource on one stream.
//
// It does not store which version of each name the proxy has. The proxy has the desired version of every name that it
// subscribes to, except for the names in pending. So an idle stream stores nothing per resource but the subscribed
// names.
type subscription struct {
	kind resource.Type

	unserved    bool // the server has no resources of this type
	requested   bool // the proxy has requested this type
	hasAnswered bool // the proxy has ACKed or NACKed a response
	wildcard    bool
	named       bool // SotW: a request had names, so a later request without names means none, not all
	names       *names
	pending     map[string]update
	held        map[string]update // waiting removals, see removal.go; pending has none of their names
	heldUntil   time.Time         // when the first waiting removal is due; zero if none waits

	refused map[string]*refusals // versions that the proxy has refused, by name

	inFlight    []*response // responses neither ACKed nor NACKed, in the order of sending
	responseDue bool        // the proxy waits for a response, even an empty one
	lastNonce   string      // nonce of the last response that was sent
	acked       string      // the nonce of the last response that was ACKed
}

// update is the pending work for one name: the proxy has another version of the resource, or needs a response about it.
type update struct {
	version     string             // version that the proxy has; empty if it has none
	last        *resource.Resource // the resource of that version; nil if known only from initial_resource_versions
	now         *resource.Resource // desired resource, or nil
	wanted      *resource.Resource // if now is nil: the previous desired resource, if last is unknown
	mustMention bool               // a response must mention the name, even if nothing differs
	uncertain   bool               // version may be outdated: a response was refused, or the proxy gave none
	// a version that the proxy may use but has not ACKed: the response was refused, perhaps because of other resources
	mayUse  string
	suspect int       // group in which to send the resource, to find the refused one; 0: no suspect
	due     time.Time // when a removal may be sent; zero if unknown
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

// setPending stores the pending update of a name, or drops it if nothing has to be sent. now is the desired resource.
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

// reservePending makes room for n updates in an empty map, so that the map does not grow step by step.
func (s *subscription) reservePending(n int) {
	if s.pending == nil && n > 0 {
		s.pending = make(map[string]update, n)
	}
}

// dropPending drops the pending update of a name. It also drops an empty map, since a map never shrinks.
func (s *subscription) dropPending(name string) {
	delete(s.held, name)
	delete(s.pending, name)
	if len(s.pending) == 0 {
		s.pending = nil
	}
}

// dropUnless drops the pending updates of all names for which keep returns false.
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
	remove   bool // the proxy has the resource, but should not
	notFound bool // the proxy waits for a resource that does not exist
}

func (s *subscription) action(u update) action {
	switch {
	case u.now != nil && !s.refuses(u.now):
		return action{send: u.now}
	case u.now != nil && u.mustMention && s.lastGood(u) != nil:
		return action{send: s.lastGood(u)}
	case u.now != nil && u.mustMention && u.version != "":
		// the proxy has a good version that the server does not know: a removal would be wrong, and a NACK answers the
		// request
		return action{send: u.now}
	case u.now != nil:
		return action{notFound: u.mustMention}
	case u.version != "" || u.uncertain:
		return action{remove: true}
	}
	return action{notFound: u.mustMention}
}
