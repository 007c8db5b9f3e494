package meshview

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
)

// randomInput is what the sources contain, independent of the Builder.
type randomInput struct {
	rand        *rand.Rand
	requireJoin bool
	objects     map[sourceKey]mesh.Object
	observed    map[mesh.ID]mesh.Observation
}

func pick[T any](in *randomInput, of ...T) T { return of[in.rand.IntN(len(of))] }

// step makes one random operation. There are so few names that objects often refer to each other.
func (in *randomInput) step(b *Builder) {
	source, meshName := pick(in, "files", "files", "files", "kubernetes"), pick(in, "default", "default", "prod")
	var o mesh.Object
	switch in.rand.IntN(12) {
	case 0:
		o = meshOf(meshName, pick(in, "", mesh.ModeStrict, mesh.ModePermissive))
		if in.rand.IntN(3) == 0 {
			o.(*mesh.Mesh).Spec.Networking = &mesh.MeshNetworking{Outbound: &mesh.MeshOutbound{Passthrough: new(bool)}}
		}
	case 10, 11:
		o = in.meshService(meshName)
	case 1, 2, 3:
		o = in.service(meshName)
	case 4:
		id := mesh.MakeID(meshName, in.proxyName())
		in.observed[id] = mesh.Observation{
			Joined: in.rand.IntN(4) > 0, Draining: in.rand.IntN(2) == 0, Held: in.rand.IntN(2) == 0, Path: pick(in, "", "", "/workload/api", "/workload/web"),
			NotServing: pick(in, "", mesh.MakeAddresses([]netip.AddrPort{mesh.AddrPort(in.address(), 80)})),
		}
		b.Observe(id, in.observed[id])
		return
	default:
		o = in.dataplane(meshName)
	}
	h := sourceKey{source, o.Key()}
	if in.rand.IntN(3) == 0 {
		delete(in.objects, h)
		b.Delete(source, o.Key())
		return
	}
	in.objects[h] = o
	b.Set(source, o)
}

func (in *randomInput) serviceName() string { return pick(in, "api", "web", "db", "cache") }
func (in *randomInput) proxyName() string   { return fmt.Sprint("dp-", in.rand.IntN(6)) }
func (in *randomInput) address() string     { return fmt.Sprint("10.0.0.", in.rand.IntN(5)) }

func (in *randomInput) service(meshName string) *mesh.Service {
	var addresses []string
	for range in.rand.IntN(3) {
		addresses = append(addresses, pick(in, in.address(), fmt.Sprint("240.0.0.", in.rand.IntN(3), ":80")))
	}
	s := service(in.serviceName(), addresses...)
	s.Mesh = meshName
	s.Spec.Protocol = pick(in, "", "", mesh.ProtocolHTTP)
	s.Spec.Headless = in.rand.IntN(4) == 0
	s.Spec.SessionAffinity = pick(in, "", mesh.AffinityNone, mesh.AffinityClientIP)
	s.Spec.InternalTrafficPolicy = pick(in, "", mesh.TrafficCluster, mesh.TrafficLocal)
	for i := range s.Spec.Endpoints {
		no := false
		s.Spec.Endpoints[i].NodeName = pick(in, "", "n1", "n2")
		s.Spec.Endpoints[i].Dataplane = pick(in, "", in.proxyName(), in.proxyName())
		s.Spec.Endpoints[i].Health = pick(in, nil, &mesh.EndpointHealth{Ready: &no}, &mesh.EndpointHealth{Ready: &no, Serving: new(true)})
	}
	return s
}

// meshService returns a random MeshService, which selects in any of the three ways.
func (in *randomInput) meshService(meshName string) *mesh.MeshService {
	s := meshServiceOf(in.serviceName(), pick(in,
		byLabels("app", in.serviceName()),
		byLabels("app", in.serviceName(), "tier", pick(in, "a", "b")),
		byLabels("kuma.io/display-name", in.proxyName()),
		mesh.DataplaneSelector{DataplaneTags: tags(in.serviceName())},
		mesh.DataplaneSelector{DataplaneRef: &mesh.DataplaneRef{Name: in.proxyName()}},
	))
	s.Mesh, s.Labels = meshName, map[string]string{"team": pick(in, "a", "b")}
	for _, port := range []uint32{80, 81} {
		if in.rand.IntN(2) == 0 {
			s.Spec.Ports = append(s.Spec.Ports, mesh.MeshServicePort{
				Port: port, TargetPort: pick[mesh.TargetPort](in, "", "80", "http"), AppProtocol: pick(in, mesh.ProtocolTCP, mesh.ProtocolHTTP),
			})
		}
	}
	return s
}

// currentForm gives a Dataplane labels and outbounds in Kuma's current form, and removes tags.
func (in *randomInput) currentForm(d *mesh.Dataplane) {
	d.Labels = map[string]string{"app": in.serviceName(), "tier": pick(in, "a", "b"), mesh.LabelNode: pick(in, "n1", "n2")}
	n := &d.Spec.Networking
	inbound := &n.Inbound[0]
	inbound.Name, inbound.Protocol = "http", pick(in, "", mesh.ProtocolHTTP)
	inbound.State = pick(in, "", mesh.InboundNotReady, mesh.InboundIgnored)
	if in.rand.IntN(2) == 0 {
		inbound.Tags = nil
	}
	for range in.rand.IntN(3) {
		ref := &mesh.BackendRef{Kind: "MeshService", Port: pick[uint32](in, 80, 81)}
		if in.rand.IntN(2) == 0 {
			ref.Name = in.serviceName()
		} else {
			ref.Labels = pick(in, map[string]string{"team": "a"}, map[string]string{"kuma.io/display-name": in.serviceName()})
		}
		n.Outbound = append(n.Outbound, mesh.Outbound{Address: "127.0.0.1", Port: uint32(20000 + len(n.Outbound)), BackendRef: ref})
	}
}

func (in *randomInput) dataplane(meshName string) *mesh.Dataplane {
	options := []option{inMesh(meshName)}
	for _, o := range []option{unready, transparent, probed, serverFirst, workload(in.serviceName()), onKubernetes, reaches(in.serviceName()), speaks(mesh.ProtocolHTTP), calls(in.serviceName(), in.serviceName()), in.currentForm} {
		if in.rand.IntN(3) == 0 {
			options = append(options, o)
		}
	}
	d := dataplane(in.proxyName(), in.address(), in.serviceName(), options...)
	if in.rand.IntN(4) == 0 {
		d.Spec.Networking.Inbound = append(d.Spec.Networking.Inbound, mesh.Inbound{Port: 81, Tags: tags(in.serviceName())})
	}
	return d
}

// onKubernetes makes a Dataplane like a pod's: its inbounds name no service, and its source sets its identity.
func onKubernetes(d *mesh.Dataplane) {
	for i := range d.Spec.Networking.Inbound {
		delete(d.Spec.Networking.Inbound[i].Tags, mesh.TagService)
	}
	d.Identity = mesh.Identity{Path: "/ns/shop/sa/" + d.Name, Instance: d.Spec.Networking.Address}
}

// fresh returns a Builder that gets all objects at once.
func (in *randomInput) fresh() *Builder {
	b := NewBuilder(Options{Sources: []string{"kubernetes", "files"}, RequireJoin: in.requireJoin})
	for h, o := range in.objects {
		b.Set(h.source, o)
	}
	for id, o := range in.observed {
		b.Observe(id, o)
	}
	b.Synced("files")
	b.Synced("kubernetes")
	return b
}

// forClients ignores the fields of an endpoint that are only displayed.
var forClients = cmpopts.IgnoreFields(Endpoint{}, "Reason", "Proxy", "Declared")

// ignoredOrNot compares the state of an inbound as far as its own proxy depends on it.
var ignoredOrNot = cmp.Comparer(func(a, b mesh.InboundState) bool { return (a == mesh.InboundIgnored) == (b == mesh.InboundIgnored) })

// naive compares everything to find what Change must name.
func naive(before, after *View) Change {
	var c Change
	for name := range union(before.Meshes, after.Meshes) {
		old, now := before.Mesh(name), after.Mesh(name)
		all := old != nil && now != nil && (old.Spec.Mode() != now.Spec.Mode() || old.Spec.Passthrough() != now.Spec.Passthrough())
		if old == nil {
			old = &Mesh{}
		}
		if now == nil {
			now = &Mesh{}
		}
		c.Services = append(c.Services, different(name, withListeners(old.Services.toMap()), withListeners(now.Services.toMap()), all, lists, cmpopts.IgnoreFields(Service{}, "Endpoints", "Unknown"))...)
		c.Endpoints = append(c.Endpoints, different(name, old.Services.toMap(), now.Services.toMap(), false, lists, cmpopts.IgnoreFields(Service{}, "Protocol", "Addresses", "Identities", "Affinity", "Unknown"), forClients)...)
		c.Proxies = append(c.Proxies, different(name, old.Proxies.toMap(), now.Proxies.toMap(), all, lists, cmpopts.IgnoreFields(mesh.Inbound{}, "Health"), ignoredOrNot, cmpopts.IgnoreFields(Proxy{}, "Observed", "Inbounds"))...)
		for proxy, ok := range old.Proxies.toMap() {
			if is := now.Proxies.Get(proxy); is != nil && (ok.Observed != is.Observed || !cmp.Equal(ok.Inbounds, is.Inbounds)) {
				c.Observed = append(c.Observed, mesh.MakeID(name, proxy))
			}
		}
		c.Unknown = append(c.Unknown, different(name, unknownOf(old.Services.toMap()), unknownOf(now.Services.toMap()), false)...)
	}
	slices.Sort(c.Services)
	slices.Sort(c.Endpoints)
	slices.Sort(c.Proxies)
	slices.Sort(c.Observed)
	slices.Sort(c.Unknown)
	return c
}

// unknownOf returns the services that do not exist.
func unknownOf(services map[string]*Service) map[string]*bool {
	unknown := map[string]*bool{}
	for name, s := range services {
		if s.Unknown {
			unknown[name] = &s.Unknown
		}
	}
	return unknown
}

// withListeners returns copies whose Addresses are all addresses to listen on.
func withListeners(services map[string]*Service) map[string]*Service {
	copies := map[string]*Service{}
	for name, s := range services {
		c := *s
		c.Addresses = s.Listeners()
		copies[name] = &c
	}
	return copies
}

// different returns the names that are new, removed or different; with all, also the unchanged names.
func different[V any](meshName string, old, now map[string]*V, all bool, o ...cmp.Option) []mesh.ID {
	var ids []mesh.ID
	for name := range union(old, now) {
		if all && now[name] != nil || !cmp.Equal(old[name], now[name], o...) {
			ids = append(ids, mesh.MakeID(meshName, name))
		}
	}
	return ids
}

func union[V any](a, b map[string]V) map[string]V {
	u := maps.Clone(a)
	if u == nil {
		u = map[string]V{}
	}
	maps.Copy(u, b)
	return u
}

func TestIncrementalViewsEqualFreshOnes(t *testing.T) {
	generation := cmpopts.IgnoreFields(View{}, "Generation")
	for seed := range uint64(slowtest.Rounds(8, 4)) {
		in := &randomInput{
			rand: rand.New(rand.NewPCG(seed, 3)), requireJoin: seed%2 == 0,
			objects: map[sourceKey]mesh.Object{}, observed: map[mesh.ID]mesh.Observation{},
		}
		b := in.fresh()
		view := mustBuild(t, b).After
		for step := range 80 {
			for range 1 + in.rand.IntN(4) {
				in.step(b)
			}
			want := mustBuild(t, in.fresh()).After
			c, changed := b.Build()
			if same := cmp.Equal(view, want, lists, generation); same == changed {
				t.Fatalf("seed %d, step %d: Build() = %v, but the views are equal: %v", seed, step, changed, same)
			}
			if !changed {
				continue
			}
			if diff := cmp.Diff(want, c.After, lists, generation); diff != "" {
				t.Fatalf("seed %d, step %d: incremental view (-want +got):\n%s", seed, step, diff)
			}
			if diff := cmp.Diff(naive(view, c.After), c, lists); diff != "" {
				t.Fatalf("seed %d, step %d: Change (-want +got):\n%s", seed, step, diff)
			}
			if c.Before != view || c.After.Generation != view.Generation+1 {
				t.Fatalf("seed %d, step %d: Before or Generation %d wrong", seed, step, c.After.Generation)
			}
			checkShared(t, c.After)
			view = c.After
		}
		checkForgets(t, b, in)
	}
}

// checkShared checks that proxies that can reach the same share one scope.
func checkShared(t *testing.T, v *View) {
	t.Helper()
	for _, m := range v.Meshes {
		for name, p := range m.Proxies.All() {
			for other, o := range m.Proxies.All() {
				if reflect.DeepEqual(p.Scope, o.Scope) != (p.Scope == o.Scope) {
					t.Fatalf("%s and %s reach %v and %v: scopes %p and %p", name, other, p.Scope, o.Scope, p.Scope, o.Scope)
				}
			}
		}
	}
}

// checkForgets checks that nothing is left of deleted objects.
func checkForgets(t *testing.T, b *Builder, in *randomInput) {
	t.Helper()
	for h := range in.objects {
		b.Delete(h.source, h.key)
	}
	for id := range in.observed {
		b.Observe(id, mesh.Observation{})
	}
	b.Build()
	m := b.state.meshes[mesh.DefaultMesh]
	if len(b.state.meshes) != 1 || len(b.state.objects)+len(b.state.observed)+len(b.state.dirty) != 0 {
		t.Fatalf("state keeps %v", b.state)
	}
	if len(m.byName)+len(m.byCriterion)+len(m.selecting)+len(m.references)+len(m.dirtyMeshServices) != 0 {
		t.Fatalf("state keeps %v of MeshServices", m.meshServices)
	}
	if len(m.proxies)+len(m.services)+len(m.scopes)+len(m.dirtyServices)+len(m.dirtyProxies)+len(m.addressed) != 0 {
		t.Fatalf("state keeps %v of the mesh", m)
	}
}
