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
	// A resource that is refused because of the proxy's environment is resent after retryFirst, and then after a delay
	// that doubles each time, up to retryMax.
	retryFirst = time.Second
	retryMax   = 15 * time.Second
)

// refusals are the refused versions of one name.
type refusals struct {
	nacks []NACK             // the newest last, at most keepRefused
	good  *resource.Resource // the last version that the proxy had before; nil if none or unknown
}

// find returns the refusal of a version, nil if it was not refused.
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

// refuses reports whether the proxy has refused r, and r must not be resent yet.
func (s *subscription) refuses(r *resource.Resource) bool {
	n := s.refused[r.Name].find(r.Version)
	return n != nil && !n.retrying
}

// mayUse reports whether the proxy may use a version that it has not ACKed.
func (s *subscription) mayUse(name string, u update) bool {
	return u.mayUse != "" && s.refused[name].find(u.mayUse) == nil
}

// lastGood returns a version that the proxy accepts in place of u's refused version: the version that it has, or had
// before it unsubscribed; nil if unknown.
func (s *subscription) lastGood(u update) *resource.Resource {
	if u.last != nil && !s.refuses(u.last) {
		return u.last
	}
	if r := s.refused[u.now.Name]; r != nil && r.good != nil && !s.refuses(r.good) {
		return r.good
	}
	return nil
}

// remember stores a refused version, and drops the oldest one of the name if there are too many. good is the version
// that the proxy had before, nil if unknown.
func (s *subscription) remember(n NACK, good *resource.Resource) NACK {
	if s.refused == nil {
		s.refused = map[string]*refusals{}
	}
	r := s.refused[n.Name]
	if r == nil {
		r = &refusals{}
		s.refused[n.Name] = r
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

// accepted drops the refusal of r, because the proxy has ACKed r.
func (s *subscription) accepted(r *resource.Resource) {
	list := s.refused[r.Name]
	if list.find(r.Version) == nil {
		return
	}
	list.nacks = slices.DeleteFunc(list.nacks, func(n NACK) bool { return n.Version == r.Version })
	if len(list.nacks) == 0 {
		delete(s.refused, r.Name)
	}
}

// isEnvironmental reports whether Envoy refuses a resource because of external conditions that may change: an address
// in use by another process or not yet on the host, or a file that does not exist yet. The same resource may be
// accepted a moment later. The reason is Envoy's message for one resource (source/common/network/listen_socket_impl.cc,
// source/common/config/utility.cc), with the same wording in 1.38 to 1.40. A host without IPv6 does not count, since it
// will not have IPv6 a moment later.
func isEnvironmental(reason string) bool {
	if strings.Contains(reason, "cannot bind '[::]:") && strings.Contains(reason, "Cannot assign requested address") {
		return false
	}
	return strings.Contains(reason, "cannot bind '") || strings.Contains(reason, "paths must refer to an existing path")
}

// retryRemovals schedules a retry of the removals in a refused response without additions.
func (p *proxy) retryRemovals(r *response) {
	for _, m := range r.removed {
		u := m.before
		u.due, u.mustMention = p.now().Add(retryMax), false
		p.restore(r.subscription, m.name, u)
	}
}

// retryRefused resends resources that were refused because of the environment, once they are due.
func (p *proxy) retryRefused() {
	now := p.now()
	for _, s := range p.subscriptions {
		for name := range s.refused {
			want := p.get(s, name)
			if want == nil || !s.subscribes(name) {
				continue
			}
			switch n := s.refused[name].find(want.Version); {
			case n == nil, n.RetryAt.IsZero(), n.retrying:
			case now.Before(n.RetryAt):
				p.dueAt(n.RetryAt)
			default:
				n.retrying = true
			}
		}
	}
}
