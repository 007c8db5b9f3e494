// Package since tracks since when inbounds, outbounds and services have been in their current state.
package since

import (
	"net/netip"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// Times has since when inbounds, outbounds and services have been in their current state, as far as this replica knows.
// For states in its first view, this is unknown.
type Times struct {
	mu        sync.Mutex
	inbounds  map[portOf]time.Time
	outbounds map[portOf]time.Time
	without   map[mesh.ID]time.Time
}

// portOf is an address of a proxy.
type portOf struct {
	proxy mesh.ID
	at    netip.AddrPort
}

// New returns Times that know nothing yet.
func New() *Times {
	return &Times{inbounds: map[portOf]time.Time{}, outbounds: map[portOf]time.Time{}, without: map[mesh.ID]time.Time{}}
}

// Inbound returns since when the health of an inbound has been the same, a zero time if unknown.
func (s *Times) Inbound(proxy mesh.ID, at netip.AddrPort) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inbounds[portOf{proxy, at}]
}

// Outbound returns since when Envoy has accepted the listener of an outbound, or has not; a zero time if unknown.
func (s *Times) Outbound(proxy mesh.ID, at netip.AddrPort) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outbounds[portOf{proxy, at}]
}

// Without returns since when no endpoint of a service has got traffic; a zero time if unknown.
func (s *Times) Without(service mesh.ID) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.without[service]
}

// Follow applies a change of the view. Its cost is proportional to the change.
func (s *Times) Follow(c meshview.Change, now time.Time) {
	if c.Before == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ids := range [][]mesh.ID{c.Proxies, c.Observed} {
		for _, id := range ids {
			_, before := c.Before.Proxy(id)
			_, after := c.After.Proxy(id)
			note(s.inbounds, id, inboundsOf(before), inboundsOf(after), now)
			note(s.outbounds, id, outboundsOf(before), outboundsOf(after), now)
		}
	}
	for _, ids := range [][]mesh.ID{c.Services, c.Endpoints, c.Unknown} {
		for _, id := range ids {
			_, before := c.Before.Service(id)
			_, after := c.After.Service(id)
			switch was, is := served(before), served(after); {
			case after == nil || is:
				delete(s.without, id)
			case before == nil || was:
				s.without[id] = now
			}
		}
	}
}

// note records when values of a proxy changed.
func note[T comparable](since map[portOf]time.Time, proxy mesh.ID, before, after map[netip.AddrPort]T, now time.Time) {
	for at := range before {
		if _, ok := after[at]; !ok {
			delete(since, portOf{proxy, at})
		}
	}
	for at, ok := range after {
		if was, had := before[at]; !had || was != ok {
			since[portOf{proxy, at}] = now
		}
	}
}

func inboundsOf(p *meshview.Proxy) map[netip.AddrPort]meshview.InboundHealth {
	all := map[netip.AddrPort]meshview.InboundHealth{}
	if p == nil {
		return all
	}
	for i, in := range p.Inbounds {
		all[p.Dataplane.InboundAddress(&p.Dataplane.Spec.Networking.Inbound[i])] = in
	}
	return all
}

func outboundsOf(p *meshview.Proxy) map[netip.AddrPort]bool {
	all := map[netip.AddrPort]bool{}
	if p == nil {
		return all
	}
	for _, at := range p.Dataplane.OutboundListeners() {
		all[at] = p.Observed.AcceptsOutbound(at)
	}
	return all
}

// served reports whether an endpoint of a service gets traffic.
func served(s *meshview.Service) bool {
	if s == nil {
		return false
	}
	for _, gets := range s.GetTraffic() {
		if gets {
			return true
		}
	}
	return false
}
