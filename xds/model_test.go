package xds

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// TestModel plays random changes, NACKs, delays and lost connections between a proxy and a simulated Envoy. After every
// step each listener in use or draining must have its route, and each route its cluster. At rest Envoy must have the
// desired resources, except for those that it refused.
func TestModel(t *testing.T) {
	t.Parallel()
	for _, sotw := range []bool{false, true} {
		t.Run(fmt.Sprintf("sotw=%v", sotw), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(slowtest.Rounds(1000, 100)) {
				synctest.Test(t, func(t *testing.T) {
					g := newSimulation(t, seed, sotw)
					g.play(300)
					if t.Failed() {
						t.Fatalf("seed %d:\n%s", seed, strings.Join(g.history[max(0, len(g.history)-60):], "\n"))
					}
				})
			}
		})
	}
}

// simulation is one Envoy, its stream, and a changing mesh.
type simulation struct {
	t       *testing.T
	random  *rand.Rand
	bad     bool // Envoy refuses some versions
	proxy   *proxy
	envoy   *envoysim.Envoy
	options envoysim.Options
	up      []*envoysim.Request // requests on their way
	down    []*response
	desired resource.Desired
	mesh    map[resource.Name]string         // versions
	known   map[versioned]*envoysim.Resource // all resources that Envoy has received so far
	count   int
	history []string

	// orphans are listeners without a route, since the route or a newer listener is refused.
	orphans map[*envoysim.Resource]bool
	// lost clusters are missing in a list, since their last good version came in a refused response, which the server
	// cannot know.
	lost map[resource.Name]bool
}

type versioned struct {
	resource.Name
	version string
}

func newSimulation(t *testing.T, seed uint64, sotw bool) *simulation {
	g := &simulation{
		t: t, random: rand.New(rand.NewPCG(seed, 7)), mesh: map[resource.Name]string{}, known: map[versioned]*envoysim.Resource{},
		orphans: map[*envoysim.Resource]bool{}, lost: map[resource.Name]bool{}, options: envoysim.Options{Protocol: envoysim.Delta},
	}
	if sotw {
		g.options.Protocol = envoysim.SotW
	}
	g.bad = seed%2 == 1
	g.options.DrainTime = []time.Duration{0, 10 * time.Second, time.Second}[seed/2%3]
	g.connect(true)
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
		if !g.toServer() && !g.serve() && !g.toEnvoy() && !g.pass(g.proxy.wait()) && !g.giveUp() {
			g.atRest()
			return
		}
	}
	g.t.Error("the simulation never comes to rest")
}

// connect opens a new stream. Messages on their way are lost.
func (g *simulation) connect(restarted bool) {
	g.note("connect, restarted %v", restarted)
	g.proxy, g.up, g.down = newProxy(g.options.Protocol == envoysim.SotW), nil, nil
	g.proxy.drainTime = g.options.DrainTime
	g.proxy.setDesired(g.desired)
	if restarted || g.proxy.sotw { // SotW requests do not report the proxy's resources
		g.envoy = envoysim.New(g.options)
		clear(g.lost)
	}
	g.envoy.Connect(func(r *envoysim.Request) { g.up = append(g.up, r) })
}

// pass lets time pass, and returns false if d is 0.
func (g *simulation) pass(d time.Duration) bool {
	<-time.After(d)
	g.envoy.Settle()
	return d > 0
}

func (g *simulation) toServer() bool {
	if len(g.up) == 0 {
		return false
	}
	r := g.up[0]
	g.up = g.up[1:]
	var err error
	if g.proxy.sotw {
		g.note("server gets %v", r.SotW())
		_, err = g.proxy.receiveSotw(r.SotW())
	} else {
		g.note("server gets %v", r.Delta())
		_, err = g.proxy.receiveDelta(r.Delta())
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
	g.note("envoy gets %s", describe(r, g.proxy.sotw))
	m := &envoysim.Response{Type: r.subscription.kind, Nonce: r.nonce}
	list, gone := contents(r, g.proxy.sotw)
	for _, p := range list {
		m.Put = append(m.Put, g.decoded(p))
	}
	m.Gone = gone
	for _, name := range g.envoy.Gone(m) {
		n := resource.Name{Type: m.Type, Name: name}
		g.lost[n] = g.proxy.sotw && n.Type == resource.Cluster && isBad(g.mesh[n]) && g.envoy.Names(n) == ""
	}
	g.envoy.Take(m, envoysim.Refusals{
		Reason: func(p *envoysim.Resource) string {
			if isBad(p.Version) {
				return "why"
			}
			return ""
		},
		Whole: g.random.IntN(3) == 0, Unnamed: g.random.IntN(2) == 0,
	})
	g.check()
	return true
}

// decoded returns the same pointer for the same version, as a caching decoder does.
func (g *simulation) decoded(p *resource.Resource) *envoysim.Resource {
	at := versioned{p.Key(), p.Version}
	r := g.known[at]
	if r == nil {
		r = &envoysim.Resource{Key: p.Key(), Version: p.Version}
		switch ref, ok := refOf(p.Key(), p.Version); {
		case p.Type == resource.Cluster:
			r.Endpoints = p.Name
		case ok && ref.Type == resource.Route:
			r.Routes = []string{ref.Name}
		case ok:
			r.Clusters = []string{ref.Name}
		}
		g.known[at] = r
	}
	return r
}

// giveUp ends the wait for endpoints that cannot arrive because they were sent on a lost stream. A cluster that will be
// removed has such endpoints. No other cluster may wait so long.
func (g *simulation) giveUp() bool {
	if g.envoy.Warming() == 0 {
		return false
	}
	g.envoy.GiveUp(func(cluster string) {
		has := g.envoy.Get(resource.Name{Type: resource.Endpoint, Name: cluster})
		removed := g.mesh[resource.Name{Type: resource.Cluster, Name: cluster}] == ""
		if !removed || has == nil || g.envoy.Received(has) {
			g.t.Errorf("cluster %s gets no endpoints", cluster)
		}
	})
	return true
}

// check checks that traffic works: each listener in use or draining must have its route and its cluster. Here a cluster
// may lack endpoints.
func (g *simulation) check() {
	for _, lack := range g.envoy.Lacks() {
		listener := lack.Listener.Key
		if lack.Needs.Type == resource.Route && !lack.Draining && (isBad(g.mesh[listener]) || isBad(g.mesh[lack.Needs])) {
			g.orphans[lack.Listener] = true
		}
		excused := lack.WithoutEndpoints || g.lost[lack.Needs] || lack.Needs.Type == resource.Route && g.orphans[lack.Listener]
		if !excused {
			g.t.Error(lack)
		}
	}
	for n := range g.lost {
		if g.envoy.Ready(n.Name) {
			delete(g.lost, n)
		}
	}
}

// change makes another consistent mesh: every reference has an existing target.
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

// version makes a new version. It encodes what the resource refers to, and whether Envoy refuses it.
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

// refOf returns the target of a version of a listener or route.
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

// atRest compares Envoy's resources with the desired ones.
func (g *simulation) atRest() {
	e := g.envoy
	lastGood := false // a last good version is in use, so clusters that it may need stay
	for n, v := range g.mesh {
		if e.Subscribes(n) && isBad(v) {
			lastGood = lastGood || e.Get(n) != nil && (n.Type == resource.Listener || n.Type == resource.Route)
		}
		g.hasWhatItShould(n, v)
	}
	g.nothingElse(lastGood)
	if n := e.Warming(); n > 0 || e.Withholds() {
		g.t.Errorf("%d clusters still warm, or an answer is still withheld", n)
	}
	if !e.Asks(resource.Listener) && g.desired.Known() {
		g.t.Error("Envoy never requested listeners")
	}
}

// hasWhatItShould checks one resource, unless Envoy does not subscribe to it.
func (g *simulation) hasWhatItShould(n resource.Name, v string) {
	has := g.envoy.Get(n)
	switch {
	case !g.envoy.Subscribes(n):
	case isBad(v):
		if has != nil && has.Version == v {
			g.t.Errorf("%v: Envoy has %s, which it refuses", n, v)
		}
	case has == nil:
		g.t.Errorf("%v: Envoy has no version, want %q", n, v)
	case has.Version != v && !g.envoy.Unnamed(has):
		g.t.Errorf("%v: Envoy has %q, want %q", n, has.Version, v)
	}
}

// nothingElse checks that Envoy has no undesired resources.
func (g *simulation) nothingElse(lastGood bool) {
	for n, ok := range g.envoy.All() {
		_, should := g.mesh[n]
		needed := n.Type == resource.Cluster && lastGood
		if isSentWhole(n.Type) && !should && !needed && !g.envoy.Unnamed(ok) {
			g.t.Errorf("%v: Envoy has %s, want no version", n, ok.Version)
		}
	}
}
