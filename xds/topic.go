package xds

import (
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// wildcard is the name that subscribes to all resources of a type.
const wildcard = "*"

// topic is one type of resource on one stream.
//
// What the client has is not kept name by name: of each name that it subscribes to it has what the client's desired
// state says, except for those in gaps. So a stream without work to do holds no list but that of its names.
type topic struct {
	kind resource.Type

	begun    bool // it was asked for
	wildcard bool
	named    bool // SotW: it was asked for by names at least once, so that no names mean none, not all
	names    *names
	gaps     map[string]gap

	// refused are the versions that the client would not take, the newest last, at most keepRefused of a name.
	refused map[string][]NACK

	inFlight  []*reply // in the order in which they were sent, neither ACKed nor NACKed
	owed      bool     // the client waits for an answer, be it an empty one
	lastNonce string   // of the last reply
	acked     string   // the last nonce that was ACKed
}

// keepRefused is how many refused versions of one name are remembered.
const keepRefused = 4

// gap is one name of which the client lacks something.
type gap struct {
	version string             // what the client has; empty: nothing
	last    *resource.Resource // of that version; nil if it was only named by initial_resource_versions
	now     *resource.Resource // what it should have, nil for nothing
	asked   bool               // the client must get an answer, even if nothing differs
	unsure  bool               // a reply that it refused held the name: it may have something else by now
	alone   bool               // send it in a reply of its own, to learn whether it is the refused one
}

// reply is one response, for as long as the client has not answered to it.
type reply struct {
	topic *topic
	nonce string
	sent  time.Time
	puts  []*resource.Resource // that the client lacks
	gone  []string
	had   []gap                // of puts, then of gone: what the client had before
	full  []*resource.Resource // SotW: all that the response holds
}

func (r *reply) indexOf(name string) int {
	for i, p := range r.puts {
		if p.Name == name {
			return i
		}
	}
	for i, n := range r.gone {
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

// note keeps g for as long as it is one: something is to be said about the name, which should be now.
func (t *topic) note(name string, g gap, now *resource.Resource) {
	if g.asked || g.unsure || g.version != versionOf(now) {
		if t.gaps == nil {
			t.gaps = map[string]gap{}
		}
		g.now = now
		t.gaps[name] = g
		return
	}
	t.forget(name)
}

// expect makes room for gaps, where there are none.
func (t *topic) expect(n int) {
	if t.gaps == nil && n > 0 {
		t.gaps = make(map[string]gap, n)
	}
}

// forget drops the gap of name. A map does not shrink, so the empty one goes.
func (t *topic) forget(name string) {
	delete(t.gaps, name)
	if len(t.gaps) == 0 {
		t.gaps = nil
	}
}

func (t *topic) refuses(r *resource.Resource) bool {
	for _, n := range t.refused[r.Name] {
		if n.Version == r.Version {
			return true
		}
	}
	return false
}

// lastGoodInUse says whether the client goes on with an older version of something because it refused the newer one.
func (c *client) lastGoodInUse(t *topic) bool {
	for name := range t.refused {
		g, ok := t.gaps[name]
		if ok && g.version != "" && g.now != nil && t.refuses(g.now) {
			return true
		}
	}
	return false
}

// step says what can be sent about one name.
type step struct {
	put     *resource.Resource
	gone    bool // the client has it and should not
	unknown bool // the client asks for what does not exist
}

func (t *topic) step(g gap) step {
	switch {
	case g.now != nil && !t.refuses(g.now):
		return step{put: g.now}
	case g.now != nil && g.asked && g.last != nil && !t.refuses(g.last):
		return step{put: g.last}
	case g.now != nil:
		return step{unknown: g.asked}
	case g.version != "" || g.unsure:
		return step{gone: true}
	}
	return step{unknown: g.asked}
}
