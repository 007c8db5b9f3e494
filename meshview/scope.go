package meshview

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Scope is what a proxy can reach. Proxies that can reach the same share one *Scope: within a view, two pointers are
// equal if and only if the scopes are.
type Scope struct {
	Mesh string
	// Services are the names of the services for which the proxy has clusters, sorted: the targets of its outbounds
	// and, with transparentProxying, its reachableServices or all services that have an address.
	Services []string
	// Redirected means that the proxy has transparentProxying, so that it listens on the virtual addresses of its
	// services.
	Redirected bool
	// Outbounds are the addresses of a redirected proxy's own outbounds, sorted: they take precedence over virtual
	// addresses.
	Outbounds []netip.AddrPort
}

// scopeKey is equal for equal scopes of one mesh.
type scopeKey struct {
	redirected          bool
	services, outbounds string
}

// sharedScope is a Scope with the number of proxies that have it.
type sharedScope struct {
	Scope
	key   scopeKey
	users int
}

// scopes computes the scopes of the proxies of one mesh in one build. Redirected proxies can reach all services with an
// address, and the targets of their outbounds. Few outbounds have a target without an address, so each set of such
// targets is merged only once.
type scopes struct {
	mesh       *meshInput
	redirected map[scopeKey]*sharedScope
}

// of returns the scope of a proxy.
func (s *scopes) of(p *proxyInput) *sharedScope {
	name, networking := p.dataplane.Mesh, p.dataplane.Spec.Networking
	if networking.TransparentProxying == nil {
		return s.mesh.intern(Scope{Mesh: name, Services: p.uses})
	}
	if reachable := networking.TransparentProxying.ReachableServices; reachable != nil {
		return s.mesh.intern(Scope{
			Mesh: name, Services: s.mesh.reachable(reachable, p.uses), Redirected: true,
			Outbounds: outboundAddresses(networking.Outbound),
		})
	}
	var beyond []string
	for _, service := range p.uses {
		if _, ok := slices.BinarySearch(s.mesh.addressed, service); !ok {
			beyond = append(beyond, service)
		}
	}
	scope := Scope{Mesh: name, Services: beyond, Redirected: true, Outbounds: outboundAddresses(networking.Outbound)}
	key := scope.key()
	if known := s.redirected[key]; known != nil {
		return known
	}
	scope.Services = append(beyond, s.mesh.addressed...)
	slices.Sort(scope.Services)
	made := s.mesh.intern(scope)
	s.redirected[key] = made
	return made
}

// reachable returns the services in names that have an address, and those in uses, sorted.
func (m *meshInput) reachable(names, uses []string) []string {
	services := slices.Clone(uses)
	for _, name := range names {
		if _, ok := slices.BinarySearch(m.addressed, name); ok {
			services = append(services, name)
		}
	}
	slices.Sort(services)
	return slices.Compact(services)
}

func outboundAddresses(outbounds []mesh.Outbound) []netip.AddrPort {
	var all []netip.AddrPort
	for _, o := range outbounds {
		if at := mesh.AddrPort(o.Address, o.Port); at.IsValid() {
			all = append(all, at)
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return all
}

func (s *Scope) key() scopeKey {
	var outbounds strings.Builder
	for _, at := range s.Outbounds {
		_, _ = outbounds.WriteString(at.String() + " ") // never fails
	}
	return scopeKey{redirected: s.Redirected, services: strings.Join(s.Services, "\x00"), outbounds: outbounds.String()}
}

// intern returns the shared scope with these contents.
func (m *meshInput) intern(s Scope) *sharedScope {
	key := s.key()
	if known := m.scopes[key]; known != nil {
		return known
	}
	made := &sharedScope{Scope: s, key: key}
	m.scopes[key] = made
	return made
}

// setScope changes the proxy's scope, nil for a proxy that leaves the view. A scope without users is dropped.
func (m *meshInput) setScope(p *proxyInput, now *sharedScope) {
	was := p.scope
	p.scope = now
	if now != nil {
		now.users++
	}
	if was == nil {
		return
	}
	if was.users--; was.users == 0 {
		delete(m.scopes, was.key)
	}
}
