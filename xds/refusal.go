package xds

import (
	"slices"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

const (
	// keepRefused is how many refused versions of one name are remembered.
	keepRefused = 4
	// A resource that is refused because of the proxy's environment is sent again after retryFirst, and after a delay that
	// doubles each time, up to retryMax.
	retryFirst = time.Second
	retryMax   = 15 * time.Second
)

// refusals are the refused versions of one name.
type refusals struct {
	nacks []NACK             // the newest last, at most keepRefused
	good  *resource.Resource // the last version that the client had before; nil if it had none, or it is not known
}

// find returns the refusal of a version, nil if that is not refused.
func (r *refusals) find(version string) *NACK {
	if r == nil {
		return nil
	}
	for i := range r.nacks {
		if r.nacks[i].Version == version {
			return &r.nacks[i]
		}
	}
	return nil
}

// refuses reports whether the client has refused r, and it is not to be sent again yet.
func (t *topic) refuses(r *resource.Resource) bool {
	n := t.refused[r.Name].find(r.Version)
	return n != nil && !n.retrying
}

// lastGood returns a version that the client takes instead of the refused one of g: the one that it has, or had before it
// unsubscribed; nil if none is known.
func (t *topic) lastGood(g gap) *resource.Resource {
	if g.last != nil && !t.refuses(g.last) {
		return g.last
	}
	if r := t.refused[g.now.Name]; r != nil && r.good != nil && !t.refuses(r.good) {
		return r.good
	}
	return nil
}

// remember stores a refused version, and drops the oldest one of the name if there are too many. good is what the client had
// before, nil if that is not known.
func (t *topic) remember(n NACK, good *resource.Resource) NACK {
	if t.refused == nil {
		t.refused = map[string]*refusals{}
	}
	r := t.refused[n.Name]
	if r == nil {
		r = &refusals{}
		t.refused[n.Name] = r
	}
	if old := r.find(n.Version); old != nil {
		n.Attempts = old.Attempts
		r.nacks = slices.DeleteFunc(r.nacks, func(o NACK) bool { return o.Version == n.Version })
	}
	n.Attempts++
	if isEnvironmental(n.Reason) {
		n.RetryAt = n.At.Add(min(retryFirst<<min(n.Attempts-1, 10), retryMax))
	}
	if good != nil && good.Version != n.Version {
		r.good = good
	}
	r.nacks = append(r.nacks, n)
	r.nacks = r.nacks[max(0, len(r.nacks)-keepRefused):]
	return n
}

// accepted forgets that the client has refused r: it has ACKed it.
func (t *topic) accepted(r *resource.Resource) {
	list := t.refused[r.Name]
	if list.find(r.Version) == nil {
		return
	}
	list.nacks = slices.DeleteFunc(list.nacks, func(n NACK) bool { return n.Version == r.Version })
	if len(list.nacks) == 0 {
		delete(t.refused, r.Name)
	}
}

// isEnvironmental reports whether Envoy refuses a resource because of something outside of it, which may change: an address
// that another process uses or the host does not have yet, or a file that does not exist yet. The same resource may be good
// a moment later. The reason is Envoy's message for one resource (source/common/network/listen_socket_impl.cc,
// source/common/config/utility.cc); 1.38 to 1.40 say the same. A host without IPv6 will not have it a moment later.
func isEnvironmental(reason string) bool {
	if strings.Contains(reason, "cannot bind '[::]:") && strings.Contains(reason, "Cannot assign requested address") {
		return false
	}
	return strings.Contains(reason, "cannot bind '") || strings.Contains(reason, "paths must refer to an existing path")
}

// retryRemovals makes the removals of a response that was refused, although it had nothing new, be sent again later.
func (c *client) retryRemovals(r *reply) {
	for i, name := range r.removed {
		g := r.before[i]
		g.due, g.mustAnswer = c.now().Add(retryMax), false
		c.restore(r.topic, name, g)
	}
}

// retryRefused makes resources that were refused because of the environment be sent again when their time has come.
func (c *client) retryRefused() {
	now := c.now()
	for _, t := range c.topics {
		for name := range t.refused {
			want := c.get(t, name)
			if want == nil || !t.subscribes(name) {
				continue
			}
			switch n := t.refused[name].find(want.Version); {
			case n == nil, n.RetryAt.IsZero(), n.retrying:
			case now.Before(n.RetryAt):
				c.dueAt(n.RetryAt)
			default:
				n.retrying = true
			}
		}
	}
}
