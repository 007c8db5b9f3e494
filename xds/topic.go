package xds

import (
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// wildcard is the name that subscribes to all resources of a type.
const wildcard = "*"

// topic is one type of resource on one stream.
//
// It does not store what the client has of each name. The client has the desired version of every name that it subscribes
// to, except for the names in gaps. So an idle stream stores nothing per resource but the names of its subscription.
type topic struct {
	kind resource.Type

	unserved  bool // there are no resources of this type
	requested bool // the client has requested this type
	answered  bool // the client has ACKed or NACKed a response
	wildcard  bool
	named     bool // SotW: a request had names, so a later one without names means none, not all
	names     *names
	gaps      map[string]gap
	held      map[string]gap // removals that wait, see removal.go; no name is also in gaps
	heldUntil time.Time      // when the first of them is due; zero if there are none

	refused map[string]*refusals // versions that the client has refused, by name

	inFlight  []*reply // neither ACKed nor NACKed, in the order in which they were sent
	answerDue bool     // the client waits for a response, even an empty one
	lastNonce string   // of the last reply that was sent
	acked     string   // the nonce of the last reply that was ACKed
}

// gap is what has to be sent about one name, since the client has another version of it, or needs a response about it.
type gap struct {
	version    string             // that the client has; empty if it has none
	last       *resource.Resource // the resource of that version; nil if only initial_resource_versions told about it
	now        *resource.Resource // what the client should have; nil for nothing
	wanted     *resource.Resource // with now nil: what it should have had before, if last is not known
	mustAnswer bool               // a response must mention the name, even if nothing differs
	uncertain  bool               // it may have another version: it refused a reply with the name, or gave no version
	suspect    int                // send it only with others of this group, to learn which one the client refuses; 0: no suspect
	due        time.Time          // when a removal may be sent; zero if that is not known yet
}

// reply is one response, kept until the client ACKs or NACKs it.
type reply struct {
	topic   *topic
	nonce   string
	sent    time.Time
	puts    []*resource.Resource // resources that the client lacks
	removed []string
	before  []gap                // the gaps before it was sent: those of puts, then those of removed
	full    []*resource.Resource // SotW: all resources of the response
}

// indexOf returns the index of name in before, -1 if the reply does not mention it.
func (r *reply) indexOf(name string) int {
	for i, p := range r.puts {
		if p.Name == name {
			return i
		}
	}
	for i, n := range r.removed {
		if n == name {
			return len(r.puts) + i
		}
	}
	return -1
}

func gapOf(has *resource.Resource) gap { return gap{version: versionOf(has), last: has} }

func versionOf(r *resource.Resource) string {
	if r == nil {
		return ""
	}
	return r.Version
}

func (t *topic) subscribes(name string) bool { return t.wildcard || t.names.has(name) }

// gap returns the gap of name, whether or not it is held.
func (t *topic) gap(name string) (gap, bool) {
	if g, ok := t.gaps[name]; ok {
		return g, true
	}
	g, ok := t.held[name]
	return g, ok
}

// setGap stores g as the gap of name, or drops the gap if there is nothing to send. now is what the client should have.
func (t *topic) setGap(name string, g gap, now *resource.Resource) {
	delete(t.held, name)
	if g.mustAnswer || g.uncertain || g.version != versionOf(now) {
		if t.gaps == nil {
			t.gaps = map[string]gap{}
		}
		if now != nil {
			g.due = time.Time{}
		}
		g.now = now
		t.gaps[name] = g
		return
	}
	t.dropGap(name)
}

// reserveGaps makes room for n gaps if there are none, so that the map does not grow step by step.
func (t *topic) reserveGaps(n int) {
	if t.gaps == nil && n > 0 {
		t.gaps = make(map[string]gap, n)
	}
}

// dropGap drops the gap of name. It also drops an empty map, since a map never shrinks.
func (t *topic) dropGap(name string) {
	delete(t.held, name)
	delete(t.gaps, name)
	if len(t.gaps) == 0 {
		t.gaps = nil
	}
}

// dropUnless drops the gaps of all names but those that keep.
func (t *topic) dropUnless(keep func(name string) bool) {
	for _, gaps := range []map[string]gap{t.gaps, t.held} {
		for name := range gaps {
			if !keep(name) {
				t.dropGap(name)
			}
		}
	}
}

// action is what to send about one name.
type action struct {
	put     *resource.Resource
	remove  bool // the client has it, but should not
	unknown bool // the client waits for a resource that does not exist
}

func (t *topic) action(g gap) action {
	switch {
	case g.now != nil && !t.refuses(g.now):
		return action{put: g.now}
	case g.now != nil && g.mustAnswer && t.lastGood(g) != nil:
		return action{put: t.lastGood(g)}
	case g.now != nil && g.mustAnswer && g.version != "":
		return action{put: g.now} // it has a good version that nobody here knows: its next NACK answers it, a removal would not be true
	case g.now != nil:
		return action{unknown: g.mustAnswer}
	case g.version != "" || g.uncertain:
		return action{remove: true}
	}
	return action{unknown: g.mustAnswer}
}
