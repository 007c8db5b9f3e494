package adsclient

import (
	"slices"
	"sync"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// State is what one proxy has, as numbers of a Catalog. It is kept across streams: the next stream says what the proxy
// has. Its exported methods are safe for concurrent use.
type State struct {
	catalog *Catalog

	mu    sync.Mutex
	kinds [4]kindState // in the order of resource.Types
	open  int          // number of names that were requested and not answered yet
}

type kindState struct {
	answered bool
	has      map[uint32]holding // by the number of the name
}

// holding is what a proxy has for one name. users counts the clusters or listeners that refer to it.
type holding struct{ version, users uint32 }

// NewState returns the state of a proxy that has nothing. Many states share one catalog.
func NewState(c *Catalog) *State {
	s := &State{catalog: c}
	for i := range s.kinds {
		s.kinds[i].has = map[uint32]holding{}
	}
	return s
}

const (
	clusters = iota
	endpoints
	listeners
	routes
)

// dependent returns the kind that clusters or listeners refer to, or -1 for other kinds.
func dependent(kind int) int {
	switch kind {
	case clusters:
		return endpoints
	case listeners:
		return routes
	}
	return -1
}

// Settled reports whether clusters, listeners and each name that they refer to have been answered.
func (s *State) Settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open == 0 && s.kinds[clusters].answered && s.kinds[listeners].answered
}

// Contents returns the versions of everything that the proxy has, by type and name. The version is "" for a name that
// clusters or listeners refer to and that the proxy does not have: it was not answered yet, or the answer was that it
// does not exist.
func (s *State) Contents() map[resource.Type]map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[resource.Type]map[string]string{}
	for i, t := range resource.Types() {
		all[t] = s.versions(i)
		for name, h := range s.kinds[i].has {
			if h.version <= absent {
				all[t][s.catalog.text([]uint32{name})[0]] = ""
			}
		}
	}
	return all
}

// Count returns how many resources of each type the proxy has.
func (s *State) Count() map[resource.Type]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := map[resource.Type]int{}
	for i, t := range resource.Types() {
		for _, h := range s.kinds[i].has {
			if h.version > absent {
				counts[t]++
			}
		}
	}
	return counts
}

// versions returns the versions of a kind, as in Contents. The caller holds mu.
func (s *State) versions(kind int) map[string]string {
	s.catalog.mu.RLock()
	defer s.catalog.mu.RUnlock()
	versions := make(map[string]string, len(s.kinds[kind].has))
	for name, h := range s.kinds[kind].has {
		if h.version > absent {
			versions[s.catalog.names.texts[name]] = s.catalog.versions.texts[h.version]
		}
	}
	return versions
}

// asked returns the names of a kind to which the proxy subscribes by name. The caller holds mu.
func (s *State) asked(kind int) []string {
	var list []uint32
	for name := range s.kinds[kind].has {
		list = append(list, name)
	}
	slices.Sort(list)
	return s.catalog.text(list)
}

// difference is how a response changes the names that the proxy subscribes to, for the dependent kind.
type difference struct{ add, remove []uint32 }

// put applies a resource. The caller holds mu.
func (s *State) put(kind int, name, version uint32, body []byte, d *difference) error {
	k := &s.kinds[kind]
	old, had := k.has[name]
	dep := dependent(kind)
	if dep < 0 {
		if had { // otherwise the name is no longer subscribed to
			s.answer(old)
			k.has[name] = holding{version: version, users: old.users}
		}
		return nil
	}
	if had && old.version == version {
		return nil
	}
	refs, err := s.catalog.references(kind, name, version, body)
	if err != nil {
		return err
	}
	k.has[name] = holding{version: version}
	s.refer(dep, refs, d)
	if had {
		s.unrefer(dep, s.catalog.known(kind, name, old.version), d)
	}
	return nil
}

// drop records that the resource does not exist. The caller holds mu.
func (s *State) drop(kind int, name uint32, d *difference) {
	k := &s.kinds[kind]
	old, had := k.has[name]
	switch dep := dependent(kind); {
	case !had:
	case dep < 0:
		s.answer(old)
		k.has[name] = holding{version: absent, users: old.users}
	default:
		delete(k.has, name)
		s.unrefer(dep, s.catalog.known(kind, name, old.version), d)
	}
}

func (s *State) answer(h holding) {
	if h.version == unanswered {
		s.open--
	}
}

func (s *State) refer(dep int, refs []uint32, d *difference) {
	has := s.kinds[dep].has
	for _, ref := range refs {
		h := has[ref]
		if h.users == 0 {
			// Like in Envoy, no name may be in both lists: it would end up unsubscribed.
			d.remove = slices.DeleteFunc(d.remove, func(other uint32) bool { return other == ref })
			d.add = append(d.add, ref)
			s.open++
		}
		h.users++
		has[ref] = h
	}
}

func (s *State) unrefer(dep int, refs []uint32, d *difference) {
	has := s.kinds[dep].has
	for _, ref := range refs {
		h := has[ref]
		if h.users--; h.users > 0 {
			has[ref] = h
			continue
		}
		s.answer(h)
		delete(has, ref)
		if i := slices.Index(d.add, ref); i >= 0 {
			d.add = slices.Delete(d.add, i, i+1)
			continue
		}
		d.remove = append(d.remove, ref)
	}
}
