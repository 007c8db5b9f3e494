package replicas

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/test/anymesh"
	"github.com/sonde-mesh/sonde/test/seeded"
	"github.com/sonde-mesh/sonde/test/virtualplane"
)

const (
	maxReplicas = 3
	proxies     = 4
	workload    = "web"
	// Certificates are renewed several times in a schedule.
	validity = 5 * time.Minute
	// longestLag is the longest delay of a change at a replica that is not disconnected.
	longestLag = 10 * time.Second
)

// simulation is one schedule: replicas of a control plane, and agents.
type simulation struct {
	*seeded.Journal
	random    *rand.Rand
	directory string
	network   *virtual.Network
	etcd      *virtualplane.Secrets
	bundles   bundles
	epochs    bool   // without, agents get none
	servingCA []byte // PEM
	judged    bool   // whether replicas judge if the mesh is seen

	objects  map[mesh.Key]mesh.Object
	replicas map[string]*replica
	started  int // replicas so far
	agents   []*agent
	proxies  int // agents so far
	cuts     map[[2]string]bool

	mu      sync.Mutex
	lags    *rand.Rand
	ready   []string // hosts of replicas that are endpoints of the Service
	lastCut time.Time
}

func newSimulation(j *seeded.Journal, seed uint64, directory string, epochs bool) *simulation {
	s := &simulation{
		Journal: j, random: rand.New(rand.NewPCG(seed, 17)), lags: rand.New(rand.NewPCG(seed, 19)), directory: directory, network: virtual.NewNetwork(), epochs: epochs,
		objects: map[mesh.Key]mesh.Object{}, replicas: map[string]*replica{}, cuts: map[[2]string]bool{},
	}
	s.etcd = virtualplane.NewSecrets(s.bundles.wrote)
	return s
}

// bundles of the mesh, in the order of writing.
type bundles struct {
	mu      sync.Mutex
	order   []string
	roots   []*x509.CertPool // by position
	signs   string
	rotates bool
}

func (b *bundles) wrote(name string, data []byte) {
	if name != "meshes/"+mesh.DefaultMesh+"/ca.json" {
		return
	}
	var f ca.SetFile
	if err := json.Unmarshal(data, &f); err != nil {
		panic(err) // identity wrote it
	}
	set, err := f.Set()
	if err != nil {
		panic(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.signs, b.rotates = set.Signing.ID, set.Rotation != nil
	if !slices.Contains(b.order, set.ID()) {
		pool := x509.NewCertPool()
		for _, c := range set.CAs {
			pool.AddCert(c.Cert)
		}
		b.order, b.roots = append(b.order, set.ID()), append(b.roots, pool)
	}
}

// position returns the position of a bundle, or -1 if it was never written.
func (b *bundles) position(id string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Index(b.order, id)
}

// pool returns the roots of the bundle at a position.
func (b *bundles) pool(position int) *x509.CertPool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.roots[position]
}

func (b *bundles) newest() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.order) - 1
}

func (b *bundles) signing() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.signs
}

func (b *bundles) rotating() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rotates
}

// lag returns a delay, which is mostly short.
func (s *simulation) lag() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lags.IntN(4) > 0 {
		return time.Duration(s.lags.Int64N(int64(100 * time.Millisecond)))
	}
	return time.Duration(s.lags.Int64N(int64(longestLag)))
}

// anyReady returns the host of a replica that is an endpoint of the Service, or "".
func (s *simulation) anyReady() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ready) == 0 {
		return ""
	}
	return s.ready[s.lags.IntN(len(s.ready))]
}

// wasCut reports whether hosts were disconnected a short while ago, so that messages may be late.
func (s *simulation) wasCut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.lastCut) < time.Minute
}

func (s *simulation) play(ctx context.Context) {
	m := &mesh.Mesh{Name: mesh.DefaultMesh}
	m.Spec.MTLS = &mesh.MTLS{EnabledBackend: "ca", Backends: []mesh.Backend{{
		Name: "ca", Type: mesh.BackendBuiltin, DPCert: &mesh.DPCert{Rotation: &mesh.Rotation{Expiration: mesh.Duration(validity)}},
	}}}
	s.put(m)
	for range 2 {
		s.startReplica(ctx)
	}
	s.elect(s.anyReplica())
	s.servingCA = s.anyReplica().Serving.CA()
	for range proxies {
		s.join(ctx)
	}
	for range 15 + s.random.IntN(30) {
		s.operate(ctx)
		s.wait()
		s.connectEnvoys()
		s.checkTrust()
		if s.Failed() {
			break
		}
	}
	if !s.Failed() {
		s.rest(ctx)
	}
	s.end()
}

func (s *simulation) end() {
	for _, a := range s.agents {
		if a.running() {
			a.kill()
		}
	}
	for _, name := range s.names() {
		s.endReplica(name, true)
	}
}

// wait lets time pass: often so little that the last operation takes effect only after the next one.
func (s *simulation) wait() {
	longest := anymesh.Pick(s.random, 10*time.Millisecond, 2*time.Second, 30*time.Second)
	time.Sleep(time.Duration(s.random.Int64N(int64(longest))))
}

func (s *simulation) names() []string {
	return slices.Sorted(maps.Keys(s.replicas))
}

// anyReplica returns a random replica, or nil.
func (s *simulation) anyReplica() *replica {
	names := s.names()
	if len(names) == 0 {
		return nil
	}
	return s.replicas[anymesh.Pick(s.random, names...)]
}

func (s *simulation) startReplica(ctx context.Context) {
	s.started++
	name, host := fmt.Sprint("cp-", s.started), fmt.Sprint("10.0.0.", s.started)
	s.Note("%s starts", name)
	r, err := startReplica(ctx, s, name, host)
	if err != nil {
		s.Wrong("%s does not start: %v", name, err)
		return
	}
	s.replicas[name] = r
	s.follow()
	// The Service routes agents to it once it is ready, and the other replicas have discovered it.
	time.Sleep(longestLag + time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = append(s.ready, host)
}

func (s *simulation) endReplica(name string, killed bool) {
	s.Note("%s ends, killed %v", name, killed)
	r := s.replicas[name]
	delete(s.replicas, name)
	s.mu.Lock()
	s.ready = slices.DeleteFunc(s.ready, func(host string) bool { return host == r.host })
	s.mu.Unlock()
	r.end(killed)
	s.follow()
}

// connectEnvoys opens the ADS streams of Envoys whose replica has ended, or which have none yet.
func (s *simulation) connectEnvoys() {
	for _, a := range s.agents {
		if a.leaf() == nil || a.envoy != nil && s.replicas[a.envoy.name] != nil {
			continue
		}
		if r := s.anyReplica(); r != nil {
			a.connectEnvoy(r)
		}
	}
}

// elect makes a replica the leader. Another replica may still consider itself the leader for a
// while.
func (s *simulation) elect(r *replica) {
	s.Note("%s leads", r.name)
	r.leads.Store(true)
}

// put sets an object, which replicas receive later.
func (s *simulation) put(o mesh.Object) {
	o.SetDefaults()
	s.objects[o.Key()] = o
	for _, r := range s.replicas {
		r.Later(func() { r.Pipeline.Builder.Set(virtualplane.SourceObjects, o) })
	}
}

// read gives a starting replica the current objects.
func (s *simulation) read(r *replica) {
	for _, k := range slices.SortedFunc(maps.Keys(s.objects), func(a, b mesh.Key) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }) {
		r.Pipeline.Builder.Set(virtualplane.SourceObjects, s.objects[k])
	}
	r.Pipeline.Builder.Synced(virtualplane.SourceObjects)
}

// dataplane returns the Dataplane of an agent, with other tags each time, but the same identity.
func (s *simulation) dataplane(a *agent) *mesh.Dataplane {
	d := &mesh.Dataplane{}
	d.Mesh, d.Name = mesh.DefaultMesh, a.name
	d.Spec.Networking.Address = a.host
	d.Spec.Networking.Inbound = []mesh.Inbound{{
		Port: 8080, Tags: mesh.Tags{mesh.TagService: workload, "version": strconv.Itoa(s.random.IntN(3))},
		ServiceProbe: &mesh.ServiceProbe{TCP: &mesh.TCPServiceProbe{}},
	}}
	d.Spec.Networking.Outbound = []mesh.Outbound{{Port: 9000, Tags: mesh.Tags{mesh.TagService: workload}}}
	return d
}

// join adds a proxy and its agent.
func (s *simulation) join(ctx context.Context) {
	s.proxies++
	a := &agent{
		sim: s, name: fmt.Sprint("web-", s.proxies), host: fmt.Sprint("10.0.1.", s.proxies), files: &virtualplane.Files{},
	}
	a.old = s.epochs && s.random.IntN(4) == 0
	a.epochs = s.epochs && !a.old
	a.caFile = s.writeCA(a)
	s.agents = append(s.agents, a)
	s.put(s.dataplane(a))
	a.start(ctx)
}

// writeCA writes the file of the control plane's CAs that a pod has from its start.
func (s *simulation) writeCA(a *agent) string {
	file := filepath.Join(s.directory, a.name+".pem")
	if err := os.WriteFile(file, s.servingCA, 0o600); err != nil {
		s.Wrong("%v", err)
	}
	return file
}

func (s *simulation) anyAgent() *agent { return anymesh.Pick(s.random, s.agents...) }

func (a *agent) inbound() netip.AddrPort { return netip.MustParseAddrPort(a.host + ":8080") }

// setCut disconnects two hosts from each other, or reconnects them.
func (s *simulation) setCut(a, b string, cut bool) {
	s.Note("%s and %s are cut: %v", a, b, cut)
	s.network.SetCut(a, b, cut)
	if cut {
		s.cuts[virtual.Link(a, b)] = true
	} else {
		delete(s.cuts, virtual.Link(a, b))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastCut = time.Now()
}

// operation is one kind of event, with its weight among all.
type operation struct {
	weight int
	do     func(s *simulation, ctx context.Context)
}

var operations = []operation{
	{6, func(s *simulation, ctx context.Context) {
		if len(s.names()) < maxReplicas {
			s.startReplica(ctx)
		}
	}},
	{5, func(s *simulation, _ context.Context) {
		if r := s.anyReplica(); r != nil && len(s.names()) > 1 {
			s.endReplica(r.name, s.random.IntN(2) == 0)
		}
	}},
	{5, func(s *simulation, _ context.Context) {
		if r := s.anyReplica(); r != nil && r.api.Reach() == nil { // without the API server, no leader is elected
			s.elect(r)
		}
	}},
	{5, func(s *simulation, _ context.Context) {
		if r := s.anyReplica(); r != nil {
			s.Note("%s stops leading", r.name)
			r.leads.Store(false)
		}
	}},
	{8, func(s *simulation, ctx context.Context) {
		if r := s.anyReplica(); r != nil {
			s.Note("rotation by %s", r.name)
			if _, err := r.Agents.Rotations().Mesh(mesh.DefaultMesh).Rotate(ctx, false, false); err != nil {
				s.Note("not started: %v", err)
			}
		}
	}},
	{3, func(s *simulation, ctx context.Context) {
		// A rotation reports pods that have not joined yet, which then have to restart.
		if r := s.anyReplica(); r != nil && !slices.ContainsFunc(s.agents, func(a *agent) bool { return a.leaf() == nil }) {
			s.Note("rotation of the serving CA by %s", r.name)
			if _, err := r.Agents.Rotations().Serving().Rotate(ctx, false, true); err != nil {
				s.Note("not started: %v", err)
			}
			s.servingCA = r.Serving.CA()
		}
	}},
	{5, func(s *simulation, _ context.Context) {
		if names := s.names(); len(names) > 1 {
			a, b := s.replicas[names[0]].host, s.replicas[anymesh.Pick(s.random, names[1:]...)].host
			s.setCut(a, b, true)
		}
	}},
	{5, func(s *simulation, _ context.Context) {
		if r := s.anyReplica(); r != nil {
			s.setCut(s.anyAgent().host, r.host, true)
		}
	}},
	{8, func(s *simulation, _ context.Context) {
		cuts := slices.SortedFunc(maps.Keys(s.cuts), func(a, b [2]string) int { return strings.Compare(a[0]+a[1], b[0]+b[1]) })
		if len(cuts) > 0 {
			s.setCut(cuts[0][0], cuts[0][1], false)
		}
	}},
	{5, func(s *simulation, _ context.Context) {
		if r := s.anyReplica(); r != nil {
			s.Note("%s is cut off from the API server", r.name)
			r.api.SetCut(true)
			r.leads.Store(false)
		}
	}},
	{6, func(s *simulation, _ context.Context) {
		if r := s.anyReplica(); r != nil {
			s.Note("%s reaches the API server", r.name)
			r.api.SetCut(false)
		}
	}},
	{8, func(s *simulation, _ context.Context) {
		a := s.anyAgent()
		s.Note("the connections of %s break", a.name)
		s.network.Reset(a.host)
	}},
	{6, func(s *simulation, ctx context.Context) {
		if a := s.anyAgent(); a.running() {
			a.kill()
		} else {
			a.start(ctx)
		}
	}},
	{8, func(s *simulation, _ context.Context) {
		s.anyAgent().setServing(s.random.IntN(3) > 0)
	}},
	{8, func(s *simulation, _ context.Context) {
		if r := s.anyReplica(); r != nil {
			s.anyAgent().connectEnvoy(r)
		}
	}},
	{6, func(s *simulation, _ context.Context) { s.put(s.dataplane(s.anyAgent())) }},
	{2, func(s *simulation, ctx context.Context) {
		if len(s.agents) < 2*proxies {
			s.join(ctx)
		}
	}},
}

// operate makes one random operation.
func (s *simulation) operate(ctx context.Context) {
	i := anymesh.Weighted(s.random, len(operations), func(i int) int { return operations[i].weight })
	operations[i].do(s, ctx)
}
