package xds

import (
	"cmp"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// response is one response, kept until the proxy ACKs or NACKs it. While it is sent, without the lock of the stream,
// only mention.before changes.
type response struct {
	subscription *subscription
	nonce        string
	sent         time.Time
	resources    []mention            // missing or outdated in the proxy, sorted by name
	removed      []mention            // to be removed from the proxy, or nonexistent, sorted by name
	full         []*resource.Resource // SotW: all resources of the response, until it has been sent
	size         int                  // keptBytes when the response was made
}

// mention is the part of a response about one name.
type mention struct {
	name     string
	resource *resource.Resource // nil if the resource does not exist
	before   update             // what was pending before, in case of a NACK
}

func compareMentions(a, b mention) int { return cmp.Compare(a.name, b.name) }

// mention returns the part of the response about a name, or nil.
func (r *response) mention(name string) *mention {
	for _, list := range [][]mention{r.resources, r.removed} {
		i, found := slices.BinarySearchFunc(list, name, func(m mention, name string) int { return cmp.Compare(m.name, name) })
		if found {
			return &list[i]
		}
	}
	return nil
}

// recordSent records that the proxy has the content of the response.
func (r *response) recordSent() {
	for _, list := range [][]mention{r.resources, r.removed} {
		for _, m := range list {
			u := updateFrom(m.resource)
			u.due = m.before.due
			r.subscription.setPending(m.name, u, m.before.now)
		}
	}
}
