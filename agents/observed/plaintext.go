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

// PlaintextTally counts plaintext connections or requests, with their first and last time.
type PlaintextTally struct {
	Count       uint64
	Open        uint32
	First, Last time.Time
}

// Add adds other to t.
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

// PlaintextPort is a port, and why a mesh in mode STRICT would reject its plaintext.
type PlaintextPort struct {
	Port     uint32
	Kind     agentv1.PlaintextInbound_Kind
	Requests bool
}

// Plaintext is the plaintext traffic to a port.
type Plaintext struct {
	PlaintextPort
	Sources map[netip.Addr]PlaintextTally
	// Others counts the sources that are not in Sources; Probes counts requests with the user agent of a kubelet's
	// probes.
	Others, Probes PlaintextTally
}

// NewPlaintext returns the Plaintext of a port without connections.
func NewPlaintext(port PlaintextPort) Plaintext {
	return Plaintext{PlaintextPort: port, Sources: map[netip.Addr]PlaintextTally{}}
}

// plaintextReport is an agent's report of traffic that STRICT would reject, with the workload of its proxy at that
// time.
type plaintextReport struct {
	facts.Fact[*peerv1.Plaintext]

	workload string
}

// plaintexts has the agents' counts of traffic that STRICT would reject, and the counts of removed agents. Other
// replicas do not have the counts of removed agents.
type plaintexts struct {
	mu sync.Mutex
	// newest has the newest reports, from all replicas, of proxies in the view. sources is the number of sources in
	// them.
	newest  map[mesh.ID]plaintextReport
	sources int
	// past has the counts of removed agents. They are complete since pastSince.
	past      map[pastKey]*Plaintext
	pastSince time.Time
}

// pastKey is a port of a workload.
type pastKey struct {
	mesh, workload string
	PlaintextPort
}

// Limits of the records, whatever agents report.
const (
	// maxSources is the limit for one proxy, maxAllSources for all proxies together.
	maxSources    = 60
	maxAllSources = 100_000
	// maxPast is the limit for ports of workloads, maxPastSources for the sources of each port.
	maxPast        = 5000
	maxPastSources = 20
	// PlaintextKept is how long the counts of removed pods are kept.
	PlaintextKept = 24 * time.Hour
)

func newPlaintexts(now time.Time) plaintexts {
	return plaintexts{newest: map[mesh.ID]plaintextReport{}, past: map[pastKey]*Plaintext{}, pastSince: now}
}

// Plaintext records an agent's counts of traffic that STRICT would reject.
func (s *State) Plaintext(who identity.Subject, session facts.Order, process string, m *agentv1.Plaintext) {
	id := who.ID()
	s.facts.Plaintext.Say(id, facts.Fact[*peerv1.Plaintext]{
		Said: &peerv1.Plaintext{Order: session.Proto(), Process: process, Said: trim(m, maxSources)}, At: s.o.Now(),
		Instance: who.Instance,
	})
	s.refreshPlaintext(id)
}

// refreshPlaintext takes over the newest report of all replicas.
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

// take replaces the report of a proxy. It returns false if the current report is newer: the agent will report again.
// The caller holds mu.
func (p *plaintexts) take(d *mesh.Dataplane, now facts.Fact[*peerv1.Plaintext], at time.Time) bool {
	id := d.ID()
	if before := p.newest[id]; before.Known() && now.Order().Compare(before.Order()) < 0 {
		return false
	}
	p.replace(id, plaintextReport{now, mesh.WorkloadText(d.SPIFFEPath())}, at)
	return true
}

// HearPlaintext takes over a report that another replica received, and returns false if it is not the newest.
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

// replace replaces a proxy's report. The counts of an earlier process move to past, since a new process counts from
// zero. The caller holds mu.
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

// fold adds an agent's counts to the counts of its workload in past. The caller holds mu.
func (p *plaintexts) fold(meshName string, r plaintextReport, now time.Time) {
	p.expire(now)
	for _, said := range plaintextsOf(r) {
		key := pastKey{meshName, r.workload, said.PlaintextPort}
		past := p.past[key]
		if past == nil {
			if len(p.past) >= maxPast {
				p.pastSince = now // no answer may claim that there was no earlier traffic
				return
			}
			first := NewPlaintext(said.PlaintextPort)
			past = &first
			p.past[key] = past
		}
		past.Merge(said.ended(), maxPastSources)
	}
}

// expirePlaintext removes expired counts.
func (s *State) expirePlaintext() {
	s.plaintexts.mu.Lock()
	defer s.plaintexts.mu.Unlock()
	s.plaintexts.expire(s.o.Now())
}

// expire removes expired counts. The caller holds mu.
func (p *plaintexts) expire(now time.Time) {
	maps.DeleteFunc(p.past, func(_ pastKey, past *Plaintext) bool { return now.Sub(past.Last()) > PlaintextKept })
}

// Last returns the time of the last connection or request.
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

// Merge adds other, of the same port. Sources beyond most are added to Others.
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

// ended returns a copy of p in which all connections have ended. A connection counts when it ends, a request when it
// begins.
func (p *Plaintext) ended() Plaintext {
	end := func(t PlaintextTally) PlaintextTally {
		if !p.Requests {
			t.Count += uint64(t.Open)
		}
		t.Open = 0
		return t
	}
	all := Plaintext{PlaintextPort: p.PlaintextPort, Sources: make(map[netip.Addr]PlaintextTally, len(p.Sources)),
		Others: end(p.Others), Probes: end(p.Probes)}
	for from, t := range p.Sources {
		all.Sources[from] = end(t)
	}
	return all
}

// plaintextsOf returns the counts in a report.
func plaintextsOf(r plaintextReport) []Plaintext {
	tally := func(m *agentv1.PlaintextTally) PlaintextTally {
		if m == nil {
			return PlaintextTally{}
		}
		return PlaintextTally{Count: m.GetCount(), Open: m.GetOpen(), First: r.At.Add(-m.GetFirst().AsDuration()),
			Last: r.At.Add(-m.GetLast().AsDuration())}
	}
	all := make([]Plaintext, 0, len(r.Said.GetSaid().GetInbounds()))
	for _, m := range r.Said.GetSaid().GetInbounds() {
		p := Plaintext{
			PlaintextPort: PlaintextPort{Port: m.GetPort(), Kind: m.GetKind(), Requests: m.GetRequests()},
			Sources:       make(map[netip.Addr]PlaintextTally, len(m.GetSources())), Others: tally(m.GetOthers()),
			Probes: tally(m.GetProbes()),
		}
		for _, source := range m.GetSources() {
			if from, err := netip.ParseAddr(source.GetAddress()); err == nil { // the session checks sources
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

// trim returns m with at most that many sources, the same number for each port. It keeps the first sources of each
// port, which have the highest counts, and adds the rest to the port's others.
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
			Port: in.GetPort(), Kind: in.GetKind(), Requests: in.GetRequests(), Sources: in.GetSources()[:keep], Others: others,
			Probes: in.GetProbes(),
		})
	}
	return trimmed
}

func sumOf(a, b *agentv1.PlaintextTally) *agentv1.PlaintextTally {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	sum := &agentv1.PlaintextTally{
		Count: min(a.GetCount()+b.GetCount(), agentv1.MaxTally), Open: min(a.GetOpen()+b.GetOpen(), agentv1.MaxOpen),
		First: a.GetFirst(), Last: a.GetLast(),
	}
	if b.GetFirst().AsDuration() > a.GetFirst().AsDuration() {
		sum.First = b.GetFirst()
	}
	if b.GetLast().AsDuration() < a.GetLast().AsDuration() {
		sum.Last = b.GetLast()
	}
	return sum
}

// ProxyPlaintext has the counts of a proxy's agent.
type ProxyPlaintext struct {
	Workload string
	Ports    []Plaintext
}

// PastPlaintext has the counts of a workload's removed agents.
type PastPlaintext struct {
	Workload string
	Plaintext
}

// PlaintextOf returns the counts for a mesh from all replicas: by proxy, and of removed agents, complete since the
// returned time.
func (s *State) PlaintextOf(meshName string) (proxies map[mesh.ID]ProxyPlaintext, past []PastPlaintext,
	since time.Time) {
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
			past = append(past, PastPlaintext{key.workload, Plaintext{of.PlaintextPort, maps.Clone(of.Sources), of.Others,
				of.Probes}})
		}
	}
	return proxies, past, p.pastSince
}
