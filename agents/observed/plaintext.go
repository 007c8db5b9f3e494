package observed

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/identity"
)

// PlaintextTally is how much has come, and when.
type PlaintextTally struct {
	Count       uint64
	Open        uint32
	First, Last time.Time
}

// Add adds other.
func (t *PlaintextTally) Add(other PlaintextTally) {
	if other.Last.IsZero() {
		return
	}
	t.Count += other.Count
	t.Open += other.Open
	if t.First.IsZero() || other.First.Before(t.First) {
		t.First = other.First
	}
	if other.Last.After(t.Last) {
		t.Last = other.Last
	}
}

// PlaintextPort is a port, and why a mesh in mode STRICT would refuse what has come to it.
type PlaintextPort struct {
	Port     uint32
	Kind     agentv1.PlaintextInbound_Kind
	Requests bool
}

// Plaintext is what has come to a port.
type Plaintext struct {
	PlaintextPort
	Sources map[netip.Addr]PlaintextTally
	// Others are of sources that are not among them, Probes requests with the user agent of a kubelet's probes.
	Others, Probes PlaintextTally
}

// NewPlaintext is that of a port to which nothing has come.
func NewPlaintext(port PlaintextPort) Plaintext {
	return Plaintext{PlaintextPort: port, Sources: map[netip.Addr]PlaintextTally{}}
}

// plaintextReport is what an agent has said of what STRICT would refuse.
type plaintextReport struct {
	known bool
	order Order // of the session in which the agent has said it
	// instance is the pod's, of what was said here, and process the agent's.
	instance, process string
	at                time.Time
	said              *agentv1.Plaintext // it is replaced, never changed
	// workload of the proxy when it was said.
	workload string
}

// plaintexts is what agents have counted that STRICT would refuse. Agents say all of it in each session; of those that are gone it is only here.
type plaintexts struct {
	mu sync.Mutex
	// own has what agents have said here. Other replicas are told.
	own map[mesh.ID]plaintextReport
	// newest has what is known by all replicas, of proxies that are in the view, and sources how many sources are in it.
	newest  map[mesh.ID]plaintextReport
	sources int
	// past has what agents have counted that are gone, and pastSince is since when that is all.
	past      map[pastKey]*Plaintext
	pastSince time.Time
}

// pastKey is a port of a workload.
type pastKey struct {
	mesh, workload string
	PlaintextPort
}

// Limits of what is kept, whatever agents say.
const (
	// maxSources of one proxy, and of all.
	maxSources    = 60
	maxAllSources = 100_000
	// maxPast ports of workloads, and maxPastSources of each.
	maxPast        = 5000
	maxPastSources = 20
	// PlaintextKept is how long is kept what pods have counted that are gone.
	PlaintextKept = 24 * time.Hour
)

func newPlaintexts(now time.Time) plaintexts {
	return plaintexts{own: map[mesh.ID]plaintextReport{}, newest: map[mesh.ID]plaintextReport{}, past: map[pastKey]*Plaintext{}, pastSince: now}
}

// Plaintext records what an agent has counted that STRICT would refuse.
func (s *State) Plaintext(who identity.Subject, session Order, process string, m *agentv1.Plaintext) {
	id := who.ID()
	s.plaintexts.mu.Lock()
	if d := s.o.View().Dataplane(id); d != nil && d.Identity.Instance != who.Instance {
		s.plaintexts.mu.Unlock()
		return
	}
	s.plaintexts.own[id] = plaintextReport{known: true, order: session, instance: who.Instance, process: process, at: s.o.Now(), said: trim(m, maxSources)}
	s.plaintexts.mu.Unlock()
	s.o.Peers.Changed(id)
	s.refreshPlaintext(id)
}

// refreshPlaintext takes over what is known now by all replicas.
func (s *State) refreshPlaintext(id mesh.ID) {
	p := &s.plaintexts
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.newest[id]
	d := s.o.View().Dataplane(id)
	if d == nil {
		if before.known { // else it is not in the view yet
			p.replace(id, plaintextReport{}, s.o.Now())
			delete(p.own, id)
		}
		return
	}
	now := p.own[id]
	if now.instance != d.Identity.Instance {
		now = plaintextReport{} // of a pod before this one
	}
	for _, said := range s.Said(id) {
		m := said.Proxy.GetPlaintext()
		if order := OrderOf(m.GetOrder()); m != nil && (!now.known || order.Compare(now.order) > 0) {
			now = plaintextReport{known: true, order: order, process: m.GetProcess(), at: said.At, said: trim(m.GetSaid(), maxSources)}
		}
	}
	if !now.known || before.known && now.order.Compare(before.order) < 0 {
		return // the replica that had the session is gone: the agent will say it again
	}
	now.workload = mesh.WorkloadText(d.SPIFFEPath())
	p.replace(id, now, s.o.Now())
}

// replace needs mu. What another process has counted goes to the past: the new one begins at zero.
func (p *plaintexts) replace(id mesh.ID, now plaintextReport, at time.Time) {
	before := p.newest[id]
	if before.known && before.process != now.process {
		meshName, _ := mesh.SplitID(id)
		p.fold(meshName, before, at)
	}
	p.sources -= sourcesIn(before.said)
	if !now.known {
		delete(p.newest, id)
		return
	}
	if room := maxAllSources - p.sources; sourcesIn(now.said) > room {
		now.said = trim(now.said, max(0, room))
	}
	p.sources += sourcesIn(now.said)
	p.newest[id] = now
}

// fold adds what an agent has counted to what is known of its workload. It needs mu.
func (p *plaintexts) fold(meshName string, r plaintextReport, now time.Time) {
	p.expire(now)
	for _, said := range plaintextsOf(r) {
		key := pastKey{meshName, r.workload, said.PlaintextPort}
		past := p.past[key]
		if past == nil {
			if len(p.past) >= maxPast {
				p.pastSince = now // no answer says that nothing came before
				return
			}
			first := NewPlaintext(said.PlaintextPort)
			past = &first
			p.past[key] = past
		}
		past.Merge(said.ended(), maxPastSources)
	}
}

// expire needs mu.
func (p *plaintexts) expire(now time.Time) {
	maps.DeleteFunc(p.past, func(_ pastKey, past *Plaintext) bool { return now.Sub(past.Last()) > PlaintextKept })
}

// Last is when something has come last.
func (p *Plaintext) Last() time.Time {
	last := p.Others.Last
	if p.Probes.Last.After(last) {
		last = p.Probes.Last
	}
	for _, t := range p.Sources {
		if t.Last.After(last) {
			last = t.Last
		}
	}
	return last
}

// Merge adds other, of the same port. Sources beyond most are counted as others.
func (p *Plaintext) Merge(other Plaintext, most int) {
	for from, t := range other.Sources {
		sum, known := p.Sources[from]
		if !known && len(p.Sources) >= most {
			p.Others.Add(t)
			continue
		}
		sum.Add(t)
		p.Sources[from] = sum
	}
	p.Others.Add(other.Others)
	p.Probes.Add(other.Probes)
}

// ended returns p once nothing of it is open any more. A connection counts when it ends, and a request since it has begun.
func (p *Plaintext) ended() Plaintext {
	end := func(t PlaintextTally) PlaintextTally {
		if !p.Requests {
			t.Count += uint64(t.Open)
		}
		t.Open = 0
		return t
	}
	all := Plaintext{PlaintextPort: p.PlaintextPort, Sources: make(map[netip.Addr]PlaintextTally, len(p.Sources)), Others: end(p.Others), Probes: end(p.Probes)}
	for from, t := range p.Sources {
		all.Sources[from] = end(t)
	}
	return all
}

// plaintextsOf returns what a report says.
func plaintextsOf(r plaintextReport) []Plaintext {
	tally := func(m *agentv1.PlaintextTally) PlaintextTally {
		if m == nil {
			return PlaintextTally{}
		}
		return PlaintextTally{Count: m.GetCount(), Open: m.GetOpen(), First: r.at.Add(-m.GetFirst().AsDuration()), Last: r.at.Add(-m.GetLast().AsDuration())}
	}
	all := make([]Plaintext, 0, len(r.said.GetInbounds()))
	for _, m := range r.said.GetInbounds() {
		p := Plaintext{
			PlaintextPort: PlaintextPort{Port: m.GetPort(), Kind: m.GetKind(), Requests: m.GetRequests()},
			Sources:       make(map[netip.Addr]PlaintextTally, len(m.GetSources())), Others: tally(m.GetOthers()), Probes: tally(m.GetProbes()),
		}
		for _, source := range m.GetSources() {
			if from, err := netip.ParseAddr(source.GetAddress()); err == nil { // it was checked when it came
				p.Sources[from] = tally(source.GetTally())
			}
		}
		all = append(all, p)
	}
	return all
}

func sourcesIn(m *agentv1.Plaintext) int {
	n := 0
	for _, in := range m.GetInbounds() {
		n += len(in.GetSources())
	}
	return n
}

// trim returns m with at most so many sources: of each port those with the most, which come first, and as many of each. The rest are others.
func trim(m *agentv1.Plaintext, most int) *agentv1.Plaintext {
	if sourcesIn(m) <= most {
		return m
	}
	each := most / len(m.GetInbounds())
	trimmed := &agentv1.Plaintext{}
	for _, in := range m.GetInbounds() {
		keep := min(each, len(in.GetSources()))
		others := in.GetOthers()
		for _, source := range in.GetSources()[keep:] {
			others = sumOf(others, source.GetTally())
		}
		trimmed.Inbounds = append(trimmed.Inbounds, &agentv1.PlaintextInbound{
			Port: in.GetPort(), Kind: in.GetKind(), Requests: in.GetRequests(), Sources: in.GetSources()[:keep], Others: others, Probes: in.GetProbes(),
		})
	}
	return trimmed
}

func sumOf(a, b *agentv1.PlaintextTally) *agentv1.PlaintextTally {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	sum := &agentv1.PlaintextTally{
		Count: min(a.GetCount()+b.GetCount(), agentv1.MaxTally), Open: min(a.GetOpen()+b.GetOpen(), agentv1.MaxOpen), First: a.GetFirst(), Last: a.GetLast(),
	}
	if b.GetFirst().AsDuration() > a.GetFirst().AsDuration() {
		sum.First = b.GetFirst()
	}
	if b.GetLast().AsDuration() < a.GetLast().AsDuration() {
		sum.Last = b.GetLast()
	}
	return sum
}

// forgetPlaintext forgets what agents have said here of proxies that are gone, and what is too old.
func (s *State) forgetPlaintext(gone func(mesh.ID) bool) {
	p := &s.plaintexts
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expire(s.o.Now())
	maps.DeleteFunc(p.own, func(id mesh.ID, _ plaintextReport) bool { return gone(id) })
}

// tellPlaintext returns what other replicas are told, nil if that is nothing.
func (s *State) tellPlaintext(id mesh.ID) *peerv1.Plaintext {
	s.plaintexts.mu.Lock()
	own := s.plaintexts.own[id]
	s.plaintexts.mu.Unlock()
	if !own.known {
		return nil
	}
	return &peerv1.Plaintext{Order: own.order.Proto(), Process: own.process, Said: aged(own.said, s.o.Now().Sub(own.at))}
}

// aged returns m as it would be said now, which was said that long ago.
func aged(m *agentv1.Plaintext, by time.Duration) *agentv1.Plaintext {
	ago := func(d *durationpb.Duration) *durationpb.Duration {
		return durationpb.New(min(d.AsDuration()+by, agentv1.MaxAgo))
	}
	older := func(t *agentv1.PlaintextTally) {
		if t != nil {
			t.First, t.Last = ago(t.GetFirst()), ago(t.GetLast())
		}
	}
	m = proto.CloneOf(m)
	for _, in := range m.GetInbounds() {
		older(in.GetOthers())
		older(in.GetProbes())
		for _, source := range in.GetSources() {
			older(source.GetTally())
		}
	}
	return m
}

// toldPlaintext returns the proxies of which other replicas are told.
func (s *State) toldPlaintext() []mesh.ID {
	s.plaintexts.mu.Lock()
	defer s.plaintexts.mu.Unlock()
	return slices.Collect(maps.Keys(s.plaintexts.own))
}

// ProxyPlaintext is what an agent has counted.
type ProxyPlaintext struct {
	Workload string
	Ports    []Plaintext
}

// PastPlaintext is what agents of a workload have counted that are gone.
type PastPlaintext struct {
	Workload string
	Plaintext
}

// PlaintextOf returns what is known of a mesh by all replicas: what agents have counted, and those that are gone since then.
func (s *State) PlaintextOf(meshName string) (proxies map[mesh.ID]ProxyPlaintext, past []PastPlaintext, since time.Time) {
	p := &s.plaintexts
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expire(s.o.Now())
	proxies = map[mesh.ID]ProxyPlaintext{}
	for id, r := range p.newest {
		if of, _ := mesh.SplitID(id); of == meshName {
			proxies[id] = ProxyPlaintext{Workload: r.workload, Ports: plaintextsOf(r)}
		}
	}
	for key, of := range p.past {
		if key.mesh == meshName {
			past = append(past, PastPlaintext{key.workload, Plaintext{of.PlaintextPort, maps.Clone(of.Sources), of.Others, of.Probes}})
		}
	}
	return proxies, past, p.pastSince
}
