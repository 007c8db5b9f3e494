package meshview

import (
	"slices"
	"strings"
)

// sight is what one or more proxies see: the slice that they share.
type sight struct {
	key   string
	names []string
	users int
}

// sights makes the sights of the proxies of one mesh in one step. Those of redirected proxies differ in what they use
// beyond the services that have an address, mostly in nothing, so each such remainder is merged once.
type sights struct {
	mesh       *meshInput
	redirected map[string]*sight
}

// of returns what the proxy sees.
func (s *sights) of(p *proxyInput) *sight {
	if p.dataplane.Spec.Networking.TransparentProxying == nil {
		return s.mesh.intern(p.uses)
	}
	var beyond []string
	for _, name := range p.uses {
		if _, ok := slices.BinarySearch(s.mesh.addressed, name); !ok {
			beyond = append(beyond, name)
		}
	}
	key := sightKey(beyond)
	if known := s.redirected[key]; known != nil {
		return known
	}
	names := append(beyond, s.mesh.addressed...)
	slices.Sort(names)
	made := s.mesh.intern(names)
	s.redirected[key] = made
	return made
}

// intern returns the one sight of these sorted names.
func (m *meshInput) intern(names []string) *sight {
	key := sightKey(names)
	if s := m.sights[key]; s != nil {
		return s
	}
	s := &sight{key: key, names: names}
	m.sights[key] = s
	return s
}

func sightKey(names []string) string { return strings.Join(names, "\x00") }

// look gives the proxy a sight, nil for one that leaves the view, and forgets the one that nobody has any more.
func (m *meshInput) look(p *proxyInput, now *sight) {
	was := p.sight
	p.sight = now
	if now != nil {
		now.users++
	}
	if was == nil {
		return
	}
	if was.users--; was.users == 0 {
		delete(m.sights, was.key)
	}
}
