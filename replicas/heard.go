package replicas

import (
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/facts"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Limits of what is kept of what others say.
const (
	// maxProxies of one replica: twice the sessions that it may have, since it also tells of proxies whose session is elsewhere by now.
	maxProxies = 20_000
	// maxReplicas that are kept, with those that are lost.
	maxReplicas = 16
)

// heard is what one replica has said. It is guarded by Peers.mu.
type heard struct {
	hello   *peerv1.Hello
	replica *peerv1.Replica
	// revision is how far it has read the API server, nil while it has not said it.
	revision *peerv1.Revision
	// proxies has what it has said of each, without Lost.
	proxies map[mesh.ID]facts.Said
	// complete says that a snapshot has ended. stale are the proxies that the current one has not named yet.
	complete bool
	stale    map[mesh.ID]struct{}
	// lost is when its last stream ended, zero while there is one; end ends it.
	lost time.Time
	end  func(error)
	// answers are the versions for which the replica waits. done are the answers that are to be sent, which answer is sent to for.
	answers map[mesh.ID]uint64
	done    []*peerv1.Taken
	answer  run.Signal
}

// set needs Peers.mu.
func (h *heard) set(m *peerv1.Proxy, now time.Time) error {
	id := m.GetId()
	if _, known := h.proxies[id]; !known && len(h.proxies) >= maxProxies {
		return status.Errorf(codes.ResourceExhausted, "a replica may report %d proxies", maxProxies)
	}
	delete(h.stale, id)
	h.proxies[id] = facts.Said{Replica: h.hello.GetReplica(), Proxy: m, At: now}
	delete(h.answers, id) // until it is merged, see receiver.take
	return nil
}

// await has Taken answer what was said of a proxy, if the replica waits for that. It needs Peers.mu.
func (h *heard) await(m *peerv1.Proxy) {
	if h.proxies[m.GetId()].Proxy == m && m.GetAwaited() {
		h.answers[m.GetId()] = m.GetVersion()
	}
}

// endSnapshot forgets what the snapshot has not named, and returns that. It needs Peers.mu.
func (h *heard) endSnapshot() []mesh.ID {
	h.complete = true
	gone := slices.Collect(maps.Keys(h.stale))
	for _, id := range gone {
		delete(h.proxies, id)
		delete(h.answers, id)
	}
	clear(h.stale)
	return gone
}

// Taken tells the others that the Envoys here have all that was heard of a proxy.
func (p *Peers) Taken(id mesh.ID) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.heard {
		version, waits := h.answers[id]
		if !waits {
			continue
		}
		delete(h.answers, id)
		h.done = append(h.done, &peerv1.Taken{Proxy: id, Version: version})
		h.answer.Set()
	}
}

// Heard returns what others have said of a proxy, sorted by replica.
func (p *Peers) Heard(id mesh.ID) []facts.Said {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []facts.Said
	for _, h := range p.heard {
		if said, known := h.proxies[id]; known {
			said.Lost = h.lost
			all = append(all, said)
		}
	}
	slices.SortFunc(all, func(a, b facts.Said) int { return strings.Compare(a.Replica, b.Replica) })
	return all
}

// HeardProxies returns the proxies of which others have said something.
func (p *Peers) HeardProxies() map[mesh.ID]bool {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[mesh.ID]bool{}
	for _, h := range p.heard {
		for id := range h.proxies {
			all[id] = true
		}
	}
	return all
}

// Loaded is what a replica has loaded.
type Loaded struct {
	Replica string
	// State is nil while the replica has not said it.
	State *peerv1.Replica
	// Lost is since when the replica is not heard, zero while it is.
	Lost time.Time
	// Unknown says that it stands for all replicas: it is not known yet which there are.
	Unknown bool
}

// Loaded returns what the other replicas that there are have loaded, sorted by name. Before it is known which there
// are, there is one that is Unknown.
func (p *Peers) Loaded() []Loaded {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.followed == nil {
		return []Loaded{{Replica: "(it is not known yet which there are)", Unknown: true}}
	}
	var all []Loaded
	for name := range p.followed {
		l := Loaded{Replica: name}
		if h := p.heard[name]; h != nil {
			l.State, l.Lost = h.replica, h.lost
		}
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b Loaded) int { return strings.Compare(a.Replica, b.Replica) })
	return all
}

// Sweep forgets what lost replicas have said of proxies, where keep does not want it.
func (p *Peers) Sweep(keep func(facts.Said) bool) {
	if p == nil {
		return
	}
	var lost []facts.Said
	p.mu.Lock()
	for _, h := range p.heard {
		for _, said := range h.proxies {
			if said.Lost = h.lost; !said.Lost.IsZero() {
				lost = append(lost, said)
			}
		}
	}
	p.mu.Unlock()
	for _, said := range lost {
		if !keep(said) {
			p.forget(said)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, h := range p.heard {
		if _, there := p.followed[name]; !there && !h.lost.IsZero() && len(h.proxies) == 0 {
			delete(p.heard, name)
		}
	}
}

// forget forgets what a lost replica has said, unless it has said something else meanwhile.
func (p *Peers) forget(s facts.Said) {
	p.mu.Lock()
	h := p.heard[s.Replica]
	same := h != nil && h.proxies[s.Proxy.GetId()].Proxy == s.Proxy && !h.lost.IsZero()
	if same {
		delete(h.proxies, s.Proxy.GetId())
	}
	p.mu.Unlock()
	if same {
		p.local.Heard(s.Proxy.GetId())
	}
}
