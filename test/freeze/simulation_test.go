package freeze

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/controller/freeze"
	"github.com/sonde-mesh/sonde/test/seeded"
)

const (
	// comesBack is the longest time in which an agent reconnects after losing its session.
	comesBack = 20 * time.Second
	// lostAfter is how long the sessions of a disconnected replica count, as in agents/session.
	lostAfter = time.Minute
)

// proxy has a session with a replica, or had one until ended.
type proxy struct {
	name, zone string
	at         *replica // nil without a session
	ended      time.Time
	cut        bool // disconnected from all replicas
}

// simulation is a mesh and its control plane.
type simulation struct {
	*seeded.Journal
	random *rand.Rand
	zones  []string
	// never means that nothing may be frozen.
	never bool

	running sync.WaitGroup
	mu      sync.Mutex // guards the other fields, and the replicas' fields
	lags    *rand.Rand
	nodes   map[string]freeze.Node
	proxies []*proxy
	// replicas are the running replicas; names counts them for new names.
	replicas []*replica
	started  int
	epoch    int64
	// lost has the zones that are not seen.
	lost map[string]bool
	// Disconnected pairs of replicas, by their names, and since when.
	cuts   map[[2]string]time.Time
	secret *secrets
}

func newSimulation(j *seeded.Journal, seed uint64) *simulation {
	s := &simulation{
		Journal: j, random: rand.New(rand.NewPCG(seed, 29)), lags: rand.New(rand.NewPCG(seed, 31)), nodes: map[string]freeze.Node{}, lost: map[string]bool{}, cuts: map[[2]string]time.Time{}, secret: &secrets{},
	}
	for i := range 1 + s.random.IntN(3) {
		zone := string(rune('a' + i))
		s.zones = append(s.zones, zone)
		for n := range 3 + s.random.IntN(4) {
			name := fmt.Sprintf("%s%d", zone, n)
			s.nodes[name] = freeze.Node{Zone: zone}
			for p := range 1 + s.random.IntN(3) {
				s.proxies = append(s.proxies, &proxy{name: fmt.Sprintf("%s-%d", name, p), zone: zone})
			}
		}
	}
	return s
}

// run starts the control plane, calls play, and ends it.
func (s *simulation) run(ctx context.Context, play func(context.Context)) {
	defer s.running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range 2 + s.random.IntN(2) {
		s.start(ctx)
	}
	s.running.Go(func() { s.reconnect(ctx) })
	s.elect(ctx)
	wait(ctx, 2*time.Minute)
	play(ctx)
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// disturb causes faults for a while. A healthy and seen fleet stays healthy and seen.
func (s *simulation) disturb(ctx context.Context, d time.Duration) {
	end := time.Now().Add(d)
	for time.Now().Before(end) {
		wait(ctx, time.Duration(s.random.Int64N(int64(15*time.Second))))
		operations[s.random.IntN(len(operations))](s, ctx)
	}
}

var operations = []func(*simulation, context.Context){
	(*simulation).killReplica, (*simulation).killReplica, (*simulation).elect, (*simulation).electAnother, (*simulation).cutReplicas, (*simulation).cutReplicas, (*simulation).joinReplicas,
	(*simulation).oneNode, (*simulation).oneNode, (*simulation).someProxies, (*simulation).someProxies, (*simulation).apiServer,
}

// calm ends the faults, for a duration: one replica leads, all are connected to each other and to
// the API server.
func (s *simulation) calm(ctx context.Context, d time.Duration) {
	s.mu.Lock()
	clear(s.cuts)
	for _, r := range s.replicas {
		r.away = false
	}
	for name, n := range s.nodes {
		n.Unknown = s.lost[n.Zone]
		s.nodes[name] = n
	}
	for _, p := range s.proxies {
		p.cut = s.lost[p.zone]
	}
	s.mu.Unlock()
	s.Note("calm")
	s.elect(ctx)
	s.mu.Lock()
	for _, r := range s.replicas {
		s.spread(r)
	}
	s.mu.Unlock()
	wait(ctx, d)
}

// lose makes one zone or all zones unreachable.
func (s *simulation) lose() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lost := s.zones
	if s.random.IntN(2) == 0 {
		lost = []string{s.zones[s.random.IntN(len(s.zones))]}
	}
	s.Note("lost: %v", lost)
	for _, zone := range lost {
		s.lost[zone] = true
	}
	for name, n := range s.nodes {
		if s.lost[n.Zone] {
			n.Unknown = true
			s.nodes[name] = n
		}
	}
	for _, p := range s.proxies {
		if s.lost[p.zone] {
			s.disconnect(p, true)
		}
	}
	return lost
}

func (s *simulation) find() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Note("found")
	for name, n := range s.nodes {
		if s.lost[n.Zone] {
			n.Unknown = false
			s.nodes[name] = n
		}
	}
	for _, p := range s.proxies {
		if s.lost[p.zone] {
			p.cut = false
		}
	}
	clear(s.lost)
}

// The caller of disconnect holds mu.
func (s *simulation) disconnect(p *proxy, cut bool) {
	p.cut = cut
	if p.at != nil {
		p.at, p.ended = nil, time.Now()
	}
}

// reconnect connects agents without a session to any replica.
func (s *simulation) reconnect(ctx context.Context) {
	random := rand.New(rand.NewPCG(7, uint64(len(s.proxies))))
	for ctx.Err() == nil {
		s.mu.Lock()
		for _, p := range s.proxies {
			late := time.Since(p.ended) > comesBack-2*time.Second
			if p.at == nil && !p.cut && len(s.replicas) > 0 && (late || random.IntN(5) == 0) {
				p.at = s.replicas[random.IntN(len(s.replicas))]
			}
		}
		s.mu.Unlock()
		wait(ctx, time.Second)
	}
}

// oneNode disconnects or reconnects the kubelet of a node, with its agents. At most one node of each zone is
// disconnected, so that the zone is not lost.
func (s *simulation) oneNode(context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := slices.Sorted(maps.Keys(s.nodes))
	name := names[s.random.IntN(len(names))]
	n := s.nodes[name]
	if s.lost[n.Zone] {
		return
	}
	for other, o := range s.nodes {
		if o.Zone == n.Zone && o.Unknown {
			o.Unknown = false
			s.nodes[other] = o
		}
	}
	n.Unknown = s.random.IntN(3) > 0
	s.nodes[name] = n
	s.Note("node %s unknown: %t", name, n.Unknown)
}

// someProxies disconnects up to a third of the agents of a zone, and reconnects the others.
func (s *simulation) someProxies(context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	zone := s.zones[s.random.IntN(len(s.zones))]
	if s.lost[zone] {
		return
	}
	var of []*proxy
	for _, p := range s.proxies {
		if p.zone == zone {
			of = append(of, p)
		}
	}
	s.random.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
	few := s.random.IntN(len(of)/3 + 1)
	for i, p := range of {
		s.disconnect(p, i < few)
	}
	s.Note("zone %s: all agents lose their session, %d of %d do not come back", zone, few, len(of))
}

// apiServer disconnects a replica from the API server, or reconnects it.
func (s *simulation) apiServer(context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.replicas) > 0 {
		r := s.replicas[s.random.IntN(len(s.replicas))]
		r.away = !r.away
		s.Note("replica %s does not hear the API server: %t", r.name, r.away)
	}
}

// mustBe checks that each replica reports the zone as frozen, or as not frozen. Zone "" means any zone.
func (s *simulation) mustBe(zone string, frozen bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.replicas {
		v := r.Verdict()
		is := slices.ContainsFunc(v.Zones, func(z freeze.Zone) bool { return zone == "" || z.Name == zone && z.Kept == freeze.All }) || zone == "" && len(v.Lost) > 0
		if is != frozen {
			s.Wrong("replica %s: zone %q is frozen: %t, want %t: %+v", r.name, zone, is, frozen, v)
		}
		if held := r.Held() != ""; held != frozen {
			s.Wrong("replica %s: held is %t, want %t", r.name, held, frozen)
		}
	}
}

var errAway = errors.New("the API server is away")
