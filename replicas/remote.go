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

// Limits on the state that is kept for other replicas.
const (
	// maxProxies of one replica: twice its session limit, since it also reports proxies whose session has moved
	// elsewhere.
	maxProxies = 20_000
	// maxReplicas that are kept, disconnected ones included.
	maxReplicas = 16
)

// remote is the state reported by one replica. It is guarded by Peers.mu.
type remote struct {
	hello   *peerv1.Hello
	replica *peerv1.Replica
	// revision is how far it has read from the API server, nil before it reports it.
	revision *peerv1.Revision
	// proxies has its report on each proxy, without Lost.
	proxies map[mesh.ID]facts.Said
	// complete means that a snapshot has been received completely. stale holds the proxies that the current snapshot
	// has not named yet.
	complete bool
	stale    map[mesh.ID]struct{}
	// lost is when its last stream ended, zero while one is open; end ends that stream.
	lost time.Time
	end  func(error)
	// answers are, by proxy, the versions that the replica wants acknowledged by a Taken. done are the acknowledgements
	// to send; answer wakes their sender.
	answers map[mesh.ID]uint64
	done    []*peerv1.Taken
	answer  run.Signal
}

// set stores a report. The caller holds Peers.mu.
func (h *remote) set(m *peerv1.Proxy, now time.Time) error {
	id := m.GetId()
	if _, ok := h.proxies[id]; !ok && len(h.proxies) >= maxProxies {
		return status.Errorf(codes.ResourceExhausted, "a replica may report %d proxies", maxProxies)
	}
	delete(h.stale, id)
	h.proxies[id] = facts.Said{Replica: h.hello.GetReplica(), Proxy: m, At: now}
	delete(h.answers, id) // until the report is merged, see receiver.take
	return nil
}

// await makes Taken acknowledge a report, if the replica waits for that. The caller holds Peers.mu.
func (h *remote) await(m *peerv1.Proxy) {
	if h.proxies[m.GetId()].Proxy == m && m.GetAwaited() {
		h.answers[m.GetId()] = m.GetVersion()
	}
}

// endSnapshot drops and returns the proxies that the snapshot did not name. The caller holds Peers.mu.
func (h *remote) endSnapshot() []mesh.ID {
	h.complete = true
	gone := slices.Collect(maps.Keys(h.stale))
	for _, id := range gone {
		delete(h.proxies, id)
		delete(h.answers, id)
	}
	clear(h.stale)
	return gone
}

// Taken tells the other replicas that the Envoys here have received all that was reported about a proxy.
func (p *Peers) Taken(id mesh.ID) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.remotes {
		version, waits := h.answers[id]
		if !waits {
			continue
		}
		delete(h.answers, id)
		h.done = append(h.done, &peerv1.Taken{Proxy: id, Version: version})
		h.answer.Set()
	}
}

// Heard returns what other replicas report about a proxy, sorted by replica.
func (p *Peers) Heard(id mesh.ID) []facts.Said {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []facts.Said
	for _, h := range p.remotes {
		if said, ok := h.proxies[id]; ok {
			said.Lost = h.lost
			all = append(all, said)
		}
	}
	slices.SortFunc(all, func(a, b facts.Said) int { return strings.Compare(a.Replica, b.Replica) })
	return all
}

// HeardProxies returns the proxies that other replicas have reported.
func (p *Peers) HeardProxies() map[mesh.ID]bool {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[mesh.ID]bool{}
	for _, h := range p.remotes {
		for id := range h.proxies {
			all[id] = true
		}
	}
	return all
}

// Loaded is what a replica has loaded.
type Loaded struct {
	Replica string
	// State is nil until the replica reports it.
	State *peerv1.Replica
	// Lost is since when the replica has been disconnected, zero while it is connected.
	Lost time.Time
	// Unknown marks an entry for all replicas, while their names are not known yet.
	Unknown bool
}

// Loaded returns what the other replicas have loaded, sorted by name. Until the replicas are known, it returns one
// entry that is Unknown.
func (p *Peers) Loaded() []Loaded {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.followed == nil {
		return []Loaded{{Replica: "(replicas not known yet)", Unknown: true}}
	}
	var all []Loaded
	for name := range p.followed {
		l := Loaded{Replica: name}
		if h := p.remotes[name]; h != nil {
			l.State, l.Lost = h.replica, h.lost
		}
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b Loaded) int { return strings.Compare(a.Replica, b.Replica) })
	return all
}

// Sweep drops reports of disconnected replicas for which keep returns false.
func (p *Peers) Sweep(keep func(facts.Said) bool) {
	if p == nil {
		return
	}
	var lost []facts.Said
	p.mu.Lock()
	for _, h := range p.remotes {
		for _, ok := range h.proxies {
			if ok.Lost = h.lost; !ok.Lost.IsZero() {
				lost = append(lost, ok)
			}
		}
	}
	p.mu.Unlock()
	for _, ok := range lost {
		if !keep(ok) {
			p.forget(ok)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, h := range p.remotes {
		if _, ok := p.followed[name]; !ok && !h.lost.IsZero() && len(h.proxies) == 0 {
			delete(p.remotes, name)
		}
	}
}

// forget drops a report of a disconnected replica, unless it has changed since.
func (p *Peers) forget(s facts.Said) {
	p.mu.Lock()
	h := p.remotes[s.Replica]
	same := h != nil && h.proxies[s.Proxy.GetId()].Proxy == s.Proxy && !h.lost.IsZero()
	if same {
		delete(h.proxies, s.Proxy.GetId())
	}
	p.mu.Unlock()
	if same {
		p.local.Heard(s.Proxy.GetId())
	}
}
