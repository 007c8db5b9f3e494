package xds

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// TestModel plays random changes, NACKs, delays and lost connections between a proxy and a model of Envoy. After every
// step each listener that is in use or drains must have its route, and each route its cluster. At rest Envoy must have what
// it should have, except for what it refused.
func TestModel(t *testing.T) {
	t.Parallel()
	for _, sotw := range []bool{false, true} {
		t.Run(fmt.Sprintf("sotw=%v", sotw), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(400) {
				g := newSimulation(t, seed, sotw)
				g.play(300)
				if t.Failed() {
					t.Fatalf("seed %d:\n%s", seed, strings.Join(g.history[max(0, len(g.history)-60):], "\n"))
				}
			}
		})
	}
}

// simulation is one Envoy, its stream, and a mesh that changes.
type simulation struct {
	t       *testing.T
	random  *rand.Rand
	sotw    bool
	bad     bool // some versions are refused by Envoy
	proxy   *proxy
	envoy   *envoy
	up      []any // requests on their way
	down    []*response
	desired resource.Desired
	mesh    map[resource.Name]string // versions
	count   int
	history []string
	clock   time.Time
	drain   time.Duration
}

func newSimulation(t *testing.T, seed uint64, sotw bool) *simulation {
	g := &simulation{t: t, random: rand.New(rand.NewPCG(seed, 7)), sotw: sotw, mesh: map[resource.Name]string{}}
	g.bad = seed%2 == 1
	g.drain = []time.Duration{0, 10 * time.Second, time.Second}[seed/2%3]
	g.envoy = newEnvoy(g)
	g.connect(false)
	return g
}

func (g *simulation) note(format string, args ...any) {
	g.history = append(g.history, fmt.Sprintf(format, args...))
}

func (g *simulation) play(steps int) {
	for range steps {
		switch n := g.random.IntN(100); {
		case n < 12:
			g.change()
		case n < 14:
			g.connect(g.random.IntN(3) == 0)
		case n < 18:
			g.pass(time.Duration(g.random.Int64N(int64(3 * time.Second))))
		case n < 45:
			g.toServer()
		case n < 70:
			g.serve()
		default:
			g.toEnvoy()
		}
		if g.t.Failed() {
			return
		}
	}
	for range 10_000 {
		if !g.toServer() && !g.serve() && !g.toEnvoy() && !g.pass(g.proxy.wait()) && !g.envoy.timeOut() {
			g.atRest()
			return
		}
	}
	g.t.Error("no rest: messages go round for ever")
}

// connect opens a new stream. Messages on their way are lost.
func (g *simulation) connect(restarted bool) {
	g.note("connect, restarted %v", restarted)
	g.proxy, g.up, g.down = newProxy(g.sotw), nil, nil
	g.proxy.now, g.proxy.drainTime = func() time.Time { return g.clock }, g.drain
	g.proxy.setDesired(g.desired)
	if restarted || g.sotw { // SotW requests do not say what the proxy has
		g.envoy = newEnvoy(g)
	}
	g.envoy.connected()
}

// pass lets time pass, and returns false if d is 0.
func (g *simulation) pass(d time.Duration) bool {
	g.clock = g.clock.Add(d)
	g.envoy.drained()
	return d > 0
}

func (g *simulation) toServer() bool {
	if len(g.up) == 0 {
		return false
	}
	m := g.up[0]
	g.up = g.up[1:]
	g.note("server gets %v", m)
	var err error
	switch m := m.(type) {
	case *discoveryv3.DeltaDiscoveryRequest:
		_, err = g.proxy.receiveDelta(m)
	case *discoveryv3.DiscoveryRequest:
		_, err = g.proxy.receiveSotw(m)
	}
	if err != nil {
		g.t.Error(err)
	}
	return true
}

func (g *simulation) serve() bool {
	r := g.proxy.next()
	if r == nil {
		return false
	}
	g.down = append(g.down, r)
	return true
}

func (g *simulation) toEnvoy() bool {
	if len(g.down) == 0 {
		return false
	}
	r := g.down[0]
	g.down = g.down[1:]
	g.note("envoy gets %s", describe(r, g.sotw))
	g.envoy.response(r)
	g.envoy.check()
	return true
}

// change makes another consistent mesh: every reference is to a resource that exists.
func (g *simulation) change() {
	next := maps.Clone(g.mesh)
	for range 1 + g.random.IntN(4) {
		n := resource.Name{Type: resource.Types()[g.random.IntN(4)], Name: string('a' + rune(g.random.IntN(4)))}
		if _, ok := next[n]; ok && g.random.IntN(3) == 0 {
			delete(next, n)
			continue
		}
		next[n] = g.version(n.Type)
	}
	for _, n := range slices.SortedFunc(maps.Keys(next), byKey) { // sorted, so that a seed always gives the same run
		if ref, ok := refOf(n, next[n]); ok {
			if _, ok := next[ref]; !ok {
				next[ref] = g.version(ref.Type)
				if deeper, ok := refOf(ref, next[ref]); ok && next[deeper] == "" {
					next[deeper] = g.version(deeper.Type)
				}
			}
		}
	}
	var put []*resource.Resource
	var remove []resource.Name
	for n, v := range next {
		put = append(put, modelled(n, v))
	}
	for n := range g.mesh {
		if _, ok := next[n]; !ok {
			remove = append(remove, n)
		}
	}
	shared := g.desired.Shared
	if shared == nil {
		shared = resource.NewSet()
	}
	g.mesh, g.desired = next, resource.Desired{Shared: shared.With(put, remove)}
	g.note("want %v", next)
	g.proxy.setDesired(g.desired)
}

func byKey(a, b resource.Name) int {
	return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
}

// version makes a new version. It tells what the resource refers to, and whether Envoy refuses it.
func (g *simulation) version(t resource.Type) string {
	g.count++
	v := fmt.Sprintf("%d>%c", g.count, 'a'+rune(g.random.IntN(4)))
	if g.bad && g.random.IntN(8) == 0 {
		v += "!"
	}
	if t == resource.Listener && g.random.IntN(4) == 0 {
		v += "tcp"
	}
	return v
}

func isBad(version string) bool { return strings.Contains(version, "!") }

// refOf returns what a version of a listener or route refers to.
func refOf(n resource.Name, version string) (resource.Name, bool) {
	_, ref, _ := strings.Cut(version, ">")
	switch {
	case n.Type == resource.Route, n.Type == resource.Listener && strings.HasSuffix(version, "tcp"):
		return resource.Name{Type: resource.Cluster, Name: ref[:1]}, true
	case n.Type == resource.Listener:
		return resource.Name{Type: resource.Route, Name: ref[:1]}, true
	}
	return resource.Name{}, false
}

func modelled(n resource.Name, version string) *resource.Resource {
	r := resource.New(n.Type, n.Name, version, nil)
	if n.Type == resource.Cluster {
		r.Endpoints = n.Name
		r.Peers = []string{"a", "b", "c"}[:len(version)*int(version[0])%4]
	}
	return r
}

// atRest compares what Envoy has with what it should have.
func (g *simulation) atRest() {
	e := g.envoy
	lastGood := false // a last good version is in use, and clusters that it may need stay
	for n, v := range g.mesh {
		has, ok := e.has[n]
		switch asked := isSentWhole(n.Type) || e.names[n]; {
		case !asked:
		case isBad(v):
			lastGood = lastGood || ok && (n.Type == resource.Listener || n.Type == resource.Route)
			if has == v {
				g.t.Errorf("%v: Envoy has %s, which it refuses", n, v)
			}
		case has != v && !e.ghosts[n]:
			g.t.Errorf("%v: Envoy has %q, should have %q", n, has, v)
		}
	}
	g.nothingElse(lastGood)
	if len(e.warming) > 0 {
		g.t.Errorf("still warming: %v", e.warming)
	}
	if e.requested[resource.Cluster] && !e.requested[resource.Listener] && g.desired.Known() {
		g.t.Error("Envoy never came to ask for listeners")
	}
}

// nothingElse checks that Envoy has nothing that it should not have.
func (g *simulation) nothingElse(lastGood bool) {
	for n, v := range g.envoy.has {
		_, should := g.mesh[n]
		needed := n.Type == resource.Cluster && lastGood
		if isSentWhole(n.Type) && !should && !needed && !g.envoy.ghosts[n] {
			g.t.Errorf("%v: Envoy has %s, should have nothing", n, v)
		}
	}
}

// envoy is a model of what trials with the real Envoy showed, and no more: a cluster warms until its endpoints come, and the
// ACK is withheld until then. A listener warms until its route comes. A refused response is applied in part, and what it
// brought is not named on reconnecting.
type envoy struct {
	g         *simulation
	has       map[resource.Name]string // in use, or warming if it is new
	named     map[resource.Name]string // what it would name on reconnecting: only what ACKed responses brought
	ghosts    map[resource.Name]bool   // in use but not named, since the stream that brought it is lost
	names     map[resource.Name]bool   // endpoints and routes that it subscribes to
	requested map[resource.Type]bool
	active    map[string]string        // listeners in use, by version
	told      map[resource.Name]bool   // what came on this stream
	draining  []drain                  // listeners that were replaced or removed
	warming   map[resource.Name]bool   // clusters; routes cannot use a new one yet
	ready     map[string]bool          // clusters that routes can use
	answered  map[resource.Name]bool   // routes that are known not to exist
	broken    map[resource.Name]bool   // refused when new, so what needs it cannot work
	stuck     map[resource.Name]bool   // warming clusters whose endpoints would have come on a lost stream
	orphans   map[string]string        // listeners without a route, since the route or a newer listener is refused
	withheld  []func()                 // ACKs of clusters
	nonce     map[resource.Type]string // SotW: of the last response
}

// drain is a listener that serves only its open connections, until it is closed.
type drain struct {
	name, version string
	ghost, orphan bool // see envoy
	until         time.Time
}

func newEnvoy(g *simulation) *envoy {
	return &envoy{
		g: g, has: map[resource.Name]string{}, named: map[resource.Name]string{}, ghosts: map[resource.Name]bool{},
		names: map[resource.Name]bool{}, requested: map[resource.Type]bool{}, active: map[string]string{},
		warming: map[resource.Name]bool{}, ready: map[string]bool{}, answered: map[resource.Name]bool{},
		broken: map[resource.Name]bool{}, orphans: map[string]string{}, stuck: map[resource.Name]bool{}, nonce: map[resource.Type]string{},
	}
}

func (e *envoy) subscribed(t resource.Type) []string {
	var list []string
	for n := range e.names {
		if n.Type == t {
			list = append(list, n.Name)
		}
	}
	slices.Sort(list)
	return list
}

// connected sends the first requests, all at once.
func (e *envoy) connected() {
	e.withheld, e.nonce, e.told = nil, map[resource.Type]string{}, map[resource.Name]bool{}
	for n, v := range e.has {
		if e.named[n] != v {
			e.ghosts[n] = true
		}
	}
	maps.Copy(e.stuck, e.warming)
	e.requested[resource.Cluster] = true
	for _, t := range resource.Types() {
		if e.requested[t] {
			e.request(t, e.subscribed(t), nil, true)
		}
	}
}

func (e *envoy) request(t resource.Type, add, remove []string, first bool) {
	e.requested[t] = true
	if e.g.sotw {
		e.g.up = append(e.g.up, &discoveryv3.DiscoveryRequest{TypeUrl: string(t), ResponseNonce: e.nonce[t], ResourceNames: e.subscribed(t)})
		return
	}
	r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: string(t), ResourceNamesSubscribe: add, ResourceNamesUnsubscribe: remove}
	if first {
		r.InitialResourceVersions = map[string]string{}
		for n, v := range e.named {
			if n.Type == t {
				r.InitialResourceVersions[n.Name] = v
			}
		}
	}
	e.g.up = append(e.g.up, r)
}

func (e *envoy) answer(r *response, reason string) {
	t := r.subscription.kind
	var detail *statuspb.Status
	if reason != "" {
		detail = &statuspb.Status{Code: 13, Message: reason}
	} else {
		list, removed := contents(r, false)
		for _, p := range list {
			if e.has[p.Key()] == p.Version { // else Envoy had already unsubscribed
				e.named[p.Key()] = p.Version
				delete(e.ghosts, p.Key())
			}
		}
		for _, name := range removed {
			delete(e.named, resource.Name{Type: t, Name: name})
		}
	}
	if e.g.sotw {
		e.g.up = append(e.g.up, &discoveryv3.DiscoveryRequest{TypeUrl: string(t), ResponseNonce: r.nonce, ErrorDetail: detail, ResourceNames: e.subscribed(t)})
		return
	}
	e.g.up = append(e.g.up, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: string(t), ResponseNonce: r.nonce, ErrorDetail: detail})
}
