package observed

import (
	"cmp"
	"maps"
	"net/netip"
	"sync"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/facts"
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

// plaintextReport is what an agent has said of what STRICT would refuse, and the workload of its proxy then.
type plaintextReport struct {
	facts.Fact[*peerv1.Plaintext]

	workload string
}

// plaintexts is what agents have counted that STRICT would refuse, with what those have counted that are gone, which is only here.
type plaintexts struct {
	mu sync.Mutex
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
	return plaintexts{newest: map[mesh.ID]plaintextReport{}, past: map[pastKey]*Plaintext{}, pastSince: now}
}

// Plaintext records what an agent has counted that STRICT would refuse.
func (s *State) Plaintext(who identity.Subject, session facts.Order, process string, m *agentv1.Plaintext) {
	id := who.ID()
	s.facts.Plaintext.Say(id, facts.Fact[*peerv1.Plaintext]{
		Said: &peerv1.Plaintext{Order: session.Proto(), Process: process, Said: trim(m, maxSources)}, At: s.o.Now(), Instance: who.Instance,
	})
	s.refreshPlaintext(id)
}

// refreshPlaintext takes over what is known now by all replicas.
func (s *State) refreshPlaintext(id mesh.ID) {
	p := &s.plaintexts
	p.mu.Lock()
	defer p.mu.Unlock()
	d, now := s.o.View().Dataplane(id), s.facts.Plaintext.Newest(id)
	switch {
	case d == nil:
		p.replace(id, plaintextReport{}, s.o.Now())
	case now.Known():
		p.take(d, now, s.o.Now())
	}
}

// take needs mu. It returns false for a report that is older than the current one: the agent will report again.
func (p *plaintexts) take(d *mesh.Dataplane, now facts.Fact[*peerv1.Plaintext], at time.Time) bool {
	id := d.ID()
	if before := p.newest[id]; before.Known() && now.Order().Compare(before.Order()) < 0 {
		return false
	}
	p.replace(id, plaintextReport{now, mesh.WorkloadText(d.SPIFFEPath())}, at)
	return true
}

// HearPlaintext takes a report that a peer got from an agent, and returns false for one that is not the newest.
func (s *State) HearPlaintext(m *peerv1.Proxy) bool {
	d, said := s.o.View().Dataplane(m.GetId()), m.GetPlaintext()
	if d == nil || said == nil || d.Identity.Instance != m.GetInstance() {
		return false
	}
	s.plaintexts.mu.Lock()
	defer s.plaintexts.mu.Unlock()
	now := s.o.Now()
	return s.plaintexts.take(d, facts.Fact[*peerv1.Plaintext]{Said: said, At: now}, now)
}

// replace needs mu. What another process has counted goes to the past: the new one begins at zero.
func (p *plaintexts) replace(id mesh.ID, now plaintextReport, at time.Time) {
	before := p.newest[id]
	if before.Known() && before.Said.GetProcess() != now.Said.GetProcess() {
		meshName, _ := mesh.SplitID(id)
		p.fold(meshName, before, at)
	}
	p.sources -= sourcesIn(before.Said.GetSaid())
	if !now.Known() {
		delete(p.newest, id)
		return
	}
	said := trim(now.Said.GetSaid(), max(0, min(maxSources, maxAllSources-p.sources)))
	now.Said = &peerv1.Plaintext{Order: now.Said.GetOrder(), Process: now.Said.GetProcess(), Said: said}
	p.sources += sourcesIn(said)
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

// expirePlaintext forgets what is too old.
func (s *State) expirePlaintext() {
	s.plaintexts.mu.Lock()
	defer s.plaintexts.mu.Unlock()
	s.plaintexts.expire(s.o.Now())
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
		return PlaintextTally{Count: m.GetCount(), Open: m.GetOpen(), First: r.At.Add(-m.GetFirst().AsDuration()), Last: r.At.Add(-m.GetLast().AsDuration())}
	}
	all := make([]Plaintext, 0, len(r.Said.GetSaid().GetInbounds()))
	for _, m := range r.Said.GetSaid().GetInbounds() {
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
