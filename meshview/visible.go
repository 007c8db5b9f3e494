package meshview

import (
	"slices"
	"strings"
)

// visibleSet is the set of services that one or more proxies see. They share its slice of names.
type visibleSet struct {
	key   string
	names []string
	users int
}

// visibleSets computes the sets of the proxies of one mesh in one build. Redirected proxies see all services with an
// address and those of their outbounds. Few have outbounds beyond that, so each such remainder is merged once.
type visibleSets struct {
	mesh       *meshInput
	redirected map[string]*visibleSet
}

// of returns the set of services that the proxy sees.
func (s *visibleSets) of(p *proxyInput) *visibleSet {
	if p.dataplane.Spec.Networking.TransparentProxying == nil {
		return s.mesh.intern(p.uses)
	}
	var beyond []string
	for _, name := range p.uses {
		if _, ok := slices.BinarySearch(s.mesh.addressed, name); !ok {
			beyond = append(beyond, name)
		}
	}
	key := namesKey(beyond)
	if known := s.redirected[key]; known != nil {
		return known
	}
	names := append(beyond, s.mesh.addressed...)
	slices.Sort(names)
	made := s.mesh.intern(names)
	s.redirected[key] = made
	return made
}

// intern returns the one set with these names, which are sorted.
func (m *meshInput) intern(names []string) *visibleSet {
	key := namesKey(names)
	if s := m.visible[key]; s != nil {
		return s
	}
	s := &visibleSet{key: key, names: names}
	m.visible[key] = s
	return s
}

func namesKey(names []string) string { return strings.Join(names, "\x00") }

// setVisible changes which set the proxy has, nil for a proxy that leaves the view. A set without users is forgotten.
func (m *meshInput) setVisible(p *proxyInput, now *visibleSet) {
	was := p.visible
	p.visible = now
	if now != nil {
		now.users++
	}
	if was == nil {
		return
	}
	if was.users--; was.users == 0 {
		delete(m.visible, was.key)
	}
}
