package freeze

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/freeze"
	"github.com/sonde-mesh/sonde/identity/secret"
	"github.com/sonde-mesh/sonde/partition"
)

// replica is a replica of the control plane. simulation.mu guards everything except for Freeze.
type replica struct {
	*freeze.Freeze
	s       *simulation
	name    string
	started time.Time
	away    bool // disconnected from the API server
	// wait waits while the replica runs, term starts a term as the leader, and end ends the
	// replica.
	wait func(time.Duration)
	term func() (context.Context, context.CancelFunc)
	end  context.CancelFunc
	// resign ends its term; nil if it does not lead.
	resign context.CancelFunc
	// last is the verdict that it held last.
	last *freeze.Verdict
}

// start starts a replica, which receives the verdict of the others. The caller does not hold mu.
func (s *simulation) start(ctx context.Context) {
	s.mu.Lock()
	s.started++
	r := &replica{s: s, name: fmt.Sprint("r", s.started), started: time.Now(), last: &freeze.Verdict{}}
	s.mu.Unlock()
	running, end := context.WithCancel(ctx)
	r.end, r.wait = end, func(d time.Duration) { wait(running, d) }
	r.term = func() (context.Context, context.CancelFunc) { return context.WithCancel(running) }
	r.Freeze = freeze.New(freeze.Options{
		Nodes: r.nodes, Proxies: r.proxies, Streams: func(context.Context) (map[string]bool, bool) { return nil, len(r.lacking()) == 0 }, Lacking: r.lacking,
		Apply: func(map[string]int) {}, Tell: r.tell, Record: func(events.Event) {}, Secrets: s.secret, Logger: slog.New(slog.DiscardHandler),
	})
	r.Load(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replicas = append(s.replicas, r)
	for _, other := range s.replicas {
		s.spread(other)
	}
	s.Note("replica %s starts", r.name)
}

// spread sends a replica's verdict to the others, as a new stream between them does. The caller
// holds mu.
func (s *simulation) spread(r *replica) {
	for _, other := range s.replicas {
		if other != r && s.hear(other, r) {
			m := r.Tell()
			s.running.Go(func() { other.hears(m) })
		}
	}
}

// tell is freeze.Options.Tell: it returns at once, and the others receive the verdict later.
func (r *replica) tell() {
	r.s.running.Go(func() {
		m := r.Tell()
		r.check(r.Verdict())
		r.s.mu.Lock()
		delay := time.Duration(r.s.lags.Int64N(int64(2 * time.Second)))
		r.s.mu.Unlock()
		r.wait(delay)
		r.s.mu.Lock()
		defer r.s.mu.Unlock()
		for _, other := range r.s.replicas {
			if other != r && r.s.hear(other, r) {
				r.s.running.Go(func() { other.hears(m) })
			}
		}
	})
}

func (r *replica) hears(m *peerv1.Freeze) {
	if m == nil { // no verdict yet
		return
	}
	if err := r.Hear(m); err != nil {
		r.s.Wrong("replica %s: Hear() = %v", r.name, err)
	}
	r.check(r.Verdict())
}

// check checks a verdict of the replica.
func (r *replica) check(v *freeze.Verdict) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	r.s.Detail("%s holds %+v", r.name, *v)
	if r.last.Epoch > v.Epoch && r.Verdict().Epoch <= v.Epoch {
		r.s.Wrong("replica %s: epoch %d replaces epoch %d", r.name, v.Epoch, r.last.Epoch)
	}
	if v.Newer(r.last) {
		r.last = v
	}
	if r.s.never && (len(v.Zones) > 0 || len(v.Lost) > 0) {
		r.s.Wrong("replica %s: a mesh that is well and seen is frozen: %+v", r.name, *v)
	}
}

// hear reports whether two replicas are connected. The caller holds mu.
func (s *simulation) hear(a, b *replica) bool {
	_, cut := s.cuts[pair(a, b)]
	return !cut
}

func pair(a, b *replica) [2]string { return [2]string{min(a.name, b.name), max(a.name, b.name)} }

func (r *replica) lacking() []string {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	var all []string
	for _, other := range r.s.replicas {
		if other != r && !r.s.hear(r, other) {
			all = append(all, other.name)
		}
	}
	return all
}

func (r *replica) nodes() (map[string]freeze.Node, error) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if r.away {
		return nil, errAway
	}
	return maps.Clone(r.s.nodes), nil
}

// proxies returns when proxies were last seen, as agents/session counts: for lostAfter longer at a
// disconnected replica.
func (r *replica) proxies(now time.Time) []partition.Member {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	var all []partition.Member
	for _, p := range r.s.proxies {
		m := partition.Member{Name: p.name, Zone: p.zone, Heard: p.ended}
		if p.at != nil {
			m.Heard = now
			if since, cut := r.s.cuts[pair(r, p.at)]; cut && p.at != r && now.Sub(since) >= lostAfter {
				m.Heard = since
			}
		}
		if m.Heard.Before(r.started) {
			m.Heard = r.started
		}
		all = append(all, m)
	}
	return all
}

// killReplica ends a replica, whose agents move to other replicas, and starts another.
func (s *simulation) killReplica(ctx context.Context) {
	s.mu.Lock()
	i := s.random.IntN(len(s.replicas))
	r := s.replicas[i]
	s.replicas = slices.Delete(s.replicas, i, i+1)
	for _, p := range s.proxies {
		if p.at == r {
			s.disconnect(p, p.cut)
		}
	}
	s.Note("replica %s ends", r.name)
	led := r.resign != nil
	late := s.random.IntN(2) == 0
	s.mu.Unlock()
	r.end()
	if late {
		wait(ctx, 5*time.Second)
	}
	s.start(ctx)
	if led && s.random.IntN(3) > 0 {
		s.elect(ctx)
	}
}

// elect makes one replica lead, and the others follow.
func (s *simulation) elect(context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.replicas {
		if r.resign != nil {
			r.resign()
			r.resign = nil
		}
	}
	s.leads(s.replicas[s.random.IntN(len(s.replicas))])
}

// electAnother makes one more replica lead, while the previous leader does not know it.
func (s *simulation) electAnother(context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.replicas[s.random.IntN(len(s.replicas))]
	if r.resign == nil {
		s.leads(r)
	}
}

// The caller of leads holds mu.
func (s *simulation) leads(r *replica) {
	s.epoch++
	epoch := s.epoch
	var ctx context.Context
	ctx, r.resign = r.term()
	s.Note("replica %s leads with epoch %d", r.name, epoch)
	s.running.Go(func() {
		if err := r.Lead(ctx, epoch); err != nil {
			s.Wrong("Lead() = %v", err)
		}
	})
}

// cutReplicas disconnects two replicas from each other; joinReplicas reconnects all.
func (s *simulation) cutReplicas(context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, b := s.replicas[s.random.IntN(len(s.replicas))], s.replicas[s.random.IntN(len(s.replicas))]
	if _, is := s.cuts[pair(a, b)]; a != b && !is {
		s.cuts[pair(a, b)] = time.Now()
		s.Note("replicas %s and %s do not hear each other", a.name, b.name)
	}
}

func (s *simulation) joinReplicas(context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.cuts)
	for _, r := range s.replicas {
		s.spread(r)
	}
	s.Note("all replicas hear each other")
}

// secrets stores one secret.
type secrets struct {
	mu      sync.Mutex
	data    []byte
	version int
}

func (m *secrets) Read(context.Context, string) ([]byte, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.version == 0 {
		return nil, "", fs.ErrNotExist
	}
	return m.data, strconv.Itoa(m.version), nil
}

func (m *secrets) Create(_ context.Context, _ string, data []byte) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.version > 0 {
		return "", fs.ErrExist
	}
	m.data, m.version = data, 1
	return "1", nil
}

func (m *secrets) Update(_ context.Context, _ string, data []byte, version string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if version != strconv.Itoa(m.version) {
		return "", secret.ErrConflict
	}
	m.data = data
	m.version++
	return strconv.Itoa(m.version), nil
}
