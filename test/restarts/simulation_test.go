package restarts

import (
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/restartbudget"
	"github.com/sonde-mesh/sonde/test/anymesh"
	"github.com/sonde-mesh/sonde/test/seeded"
	"github.com/sonde-mesh/sonde/test/virtualplane"
)

const (
	maxReplicas = 3
	// leaseTime is how long the others wait for a dead leader.
	leaseTime = 15 * time.Second
	// secondStep is the interval of the coarsely simulated parts of Kubernetes.
	secondStep = time.Second
)

// variant omits a safeguard, to show that it is needed.
type variant int

const (
	whole variant = iota
	forgetful
	withoutEpochs
	usersNumbers // the kubelet has the user's numbers
)

// simulation is one schedule: replicas of a control plane, an API server, and pods.
type simulation struct {
	*seeded.Journal
	random    *rand.Rand
	variant   variant
	oldServer bool
	settings  restartbudget.Settings
	network   *virtual.Network
	secrets   *virtualplane.Secrets
	api       *apiServer
	roots     *x509.CertPool
	workloads []*workload
	started   int // pods so far

	replicas     map[string]*replica
	named        int // replicas so far
	leader       *replica
	holder       *replica  // holder of the Lease, which may have expired
	leaderless   time.Time // earliest time of another leader
	epoch        int64
	thaws        map[string]time.Time // when stopped replicas are woken
	replacements time.Time            // earliest time of a replica's start

	drawing sync.Mutex
	draws   *rand.Rand // random numbers for goroutines

	mu      sync.Mutex
	away    time.Time               // the API server does not respond until then
	ready   []string                // hosts of replicas that are endpoints of the Service
	trouble time.Time               // last fault that may have separated agents and leaders
	hinders []time.Time             // times of these faults, of stops of the API server and of replicas
	itself  []string                // replicas that have stopped since the trap was set
	dying   []string                // replicas to be killed
	stops   [][2]time.Time          // from when until when a replica was stopped
	newest  int64                   // epoch of a leader
	clocks  map[int64]time.Duration // by epoch, how far the clock of the leader is ahead
	granted map[string]*granted
	made    []*restart
}

func newSimulation(j *seeded.Journal, seed uint64, v variant) *simulation {
	s := &simulation{
		Journal: j, random: rand.New(rand.NewPCG(seed, 53)), draws: rand.New(rand.NewPCG(seed, 59)), variant: v, network: virtual.NewNetwork(),
		secrets: virtualplane.NewSecrets(func(string, []byte) {}), replicas: map[string]*replica{}, thaws: map[string]time.Time{}, granted: map[string]*granted{}, clocks: map[int64]time.Duration{},
		epoch: 1,
	}
	s.api = newAPIServer(s.wroteGrant)
	s.oldServer = s.random.IntN(3) == 0
	return s
}

// latency returns a delay, which is mostly short.
func (s *simulation) latency(longest time.Duration) time.Duration {
	s.drawing.Lock()
	defer s.drawing.Unlock()
	if s.draws.IntN(4) > 0 {
		longest /= 20
	}
	return time.Millisecond + time.Duration(s.draws.Int64N(int64(longest)))
}

// chance is true with a probability of 1/n.
func (s *simulation) chance(n int) bool {
	s.drawing.Lock()
	defer s.drawing.Unlock()
	return s.draws.IntN(n) == 0
}

func (s *simulation) apiAway() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.away)
}

// disturb records a fault that may separate agents and leaders.
func (s *simulation) disturb() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble = time.Now()
	s.hinders = append(s.hinders, s.trouble)
}

// hindered records that the API server or a replica is stopped, so that agents receive nothing.
func (s *simulation) hindered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hinders = append(s.hinders, time.Now())
}

// calmFor reports whether there was a time without a fault of at least d since a time. The caller holds mu.
func (s *simulation) calmFor(d time.Duration, since time.Time) bool {
	for _, at := range s.hinders {
		if at.Sub(since) >= d {
			return true
		}
		if at.After(since) {
			since = at
		}
	}
	return time.Since(since) >= d
}

// calmSince returns how long the control plane has had no fault. The caller holds mu.
func (s *simulation) calmSince() time.Duration {
	if time.Now().Before(s.away) {
		return 0
	}
	return time.Since(s.trouble)
}

// anyReady returns the host of a replica that is an endpoint of the Service, or "".
func (s *simulation) anyReady() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ready) == 0 {
		return ""
	}
	s.drawing.Lock()
	defer s.drawing.Unlock()
	return s.ready[s.draws.IntN(len(s.ready))]
}

func (s *simulation) names() []string { return slices.Sorted(maps.Keys(s.replicas)) }

// anyReplica returns a random replica that is not stopped, or nil.
func (s *simulation) anyReplica() *replica {
	names := slices.DeleteFunc(s.names(), func(name string) bool { return s.replicas[name].frozen })
	if len(names) == 0 {
		return nil
	}
	return s.replicas[anymesh.Pick(s.random, names...)]
}

func (s *simulation) addresses() map[string]string {
	all := map[string]string{}
	for name, r := range s.replicas {
		all[name] = r.host + virtualplane.PeersPort
	}
	return all
}

// tell delivers a message to all replicas.
func (s *simulation) tell(hear func(*replica)) {
	for _, name := range s.names() {
		r := s.replicas[name]
		r.Later(func() { hear(r) })
	}
}

func (s *simulation) dataplanes() []*mesh.Dataplane {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*mesh.Dataplane
	for _, w := range s.workloads {
		for _, p := range w.pods {
			if !p.gone {
				all = append(all, p.dataplane())
			}
		}
	}
	return all
}

func (s *simulation) play(ctx context.Context) {
	for range 1 + s.random.IntN(2) {
		s.startReplica(ctx)
	}
	for i := range 1 + s.random.IntN(2) {
		s.addWorkload(ctx, fmt.Sprint("web", i))
	}
	s.wait(ctx, 30*time.Second)
	for range 10 + s.random.IntN(25) {
		s.operate(ctx)
		s.wait(ctx, time.Duration(s.random.Int64N(int64(anymesh.Pick(s.random, 10*time.Millisecond, 3*time.Second, 30*time.Second, 2*time.Minute)))))
		if s.Failed() {
			break
		}
	}
	if !s.Failed() && s.variant == whole {
		s.rest(ctx)
	}
	s.end()
}

func (s *simulation) end() {
	for _, name := range s.names() {
		s.replicas[name].end()
	}
	for _, w := range s.workloads {
		for _, p := range w.pods {
			if !p.gone {
				p.stopAgent()
				p.cancel()
				p.tasks.Wait()
			}
		}
	}
}

func newWorkload(name string, replicas int) *workload {
	return &workload{namespace: namespace, name: name, replicas: replicas, bad: map[int]*fault{}, unhelpful: map[int]map[string]bool{}, away: &agentv1.WhenAway{}}
}

// addWorkload adds a Deployment with all its pods.
func (s *simulation) addWorkload(ctx context.Context, name string) {
	w := newWorkload(name, 1+s.random.IntN(5))
	for i := range 1 + s.random.IntN(4)/3 {
		w.probes = append(w.probes, mesh.Probe{
			Container: fmt.Sprint("app", i), Type: mesh.ProbeLiveness, Guarded: true, HTTPGet: &mesh.HTTPGetProbe{Path: "/alive", Port: int32(8080 + i)},
			TimeoutSeconds: 1, PeriodSeconds: anymesh.Pick[int32](s.random, 5, 10), FailureThreshold: int32(1 + s.random.IntN(3)),
		})
	}
	budget := s.random.IntN(4) - 1
	if s.variant != whole { // a violation then happens sooner
		w.replicas, w.probes, budget = 5, w.probes[:1], 1
	}
	switch s.random.IntN(4) {
	case 0:
		w.away = &agentv1.WhenAway{Policy: agentv1.WhenAway_SLOTS, After: durationpb.New(30 * time.Second), Turns: uint32(w.replicas), TurnTime: durationpb.New(time.Minute)}
	case 1:
		w.away = &agentv1.WhenAway{Policy: agentv1.WhenAway_NATIVE, After: durationpb.New(time.Minute)}
	}
	s.deploy(ctx, w, budget)
}

// deploy creates a Deployment and its pods, with a budget of unavailable pods.
func (s *simulation) deploy(ctx context.Context, w *workload, budget int) {
	s.Note("%s has %d pods of %d containers, while away %v", w.name, w.replicas, len(w.probes), w.away)
	s.workloads = append(s.workloads, w)
	s.putDeployment(w)
	s.setBudget(w, budget)
	for range w.replicas {
		s.startPod(ctx, w)
	}
}

// wait lets time pass, in which replicas and Kubernetes act.
func (s *simulation) wait(ctx context.Context, d time.Duration) {
	for until := time.Now().Add(d); ; {
		s.step(ctx)
		left := min(time.Until(until), secondStep)
		if left <= 0 {
			return
		}
		time.Sleep(left)
	}
}

// step executes pending actions.
func (s *simulation) step(ctx context.Context) {
	s.mu.Lock()
	dying, itself := s.dying, s.itself
	s.dying, s.itself = nil, nil
	s.mu.Unlock()
	for _, name := range dying {
		s.kill(name)
	}
	for _, name := range itself {
		s.stopped(name)
	}
	for _, name := range slices.Sorted(maps.Keys(s.thaws)) {
		if time.Now().After(s.thaws[name]) {
			s.wake(name)
		}
	}
	if !time.Now().Before(s.replacements) && len(s.replicas) == 0 {
		s.startReplica(ctx)
	}
	s.elect(ctx)
	switch {
	case s.leader == nil:
		s.disturb()
	case s.apiAway() || len(s.thaws) > 0:
		s.hindered()
	}
	if !s.apiAway() {
		s.reconcile(ctx)
	}
}
