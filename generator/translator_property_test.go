package generator

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// randomStep sets or deletes an object. It uses few names, so that objects often refer to each other.
func randomStep(r *rand.Rand, b *bench) {
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	services := []string{"api", "web", "db", "cache"}
	var o mesh.Object
	switch r.IntN(9) {
	case 0:
		m := meshWith(mesh.MTLSMode(one("", string(mesh.ModeStrict), string(mesh.ModePermissive))))
		if r.IntN(3) == 0 {
			m.Spec.Networking = closedOutbound()
		}
		o = m
	case 8:
		o = meshService(one(services...), mesh.Protocol(one("tcp", "http")))
	case 1, 2, 3:
		var addresses []string
		for i := range r.IntN(3) {
			addresses = append(addresses, fmt.Sprint("240.0.0.", 3*i+r.IntN(3), ":80"))
		}
		s := service(one(services...), mesh.Protocol(one("", "http", "grpc")), addresses...)
		s.Spec.Headless = r.IntN(4) == 0
		s.Spec.SessionAffinity = mesh.SessionAffinity(one("", "None", "ClientIP"))
		s.Spec.InternalTrafficPolicy = mesh.InternalTrafficPolicy(one("", "Cluster", "Local"))
		for i := range r.IntN(3) {
			s.Spec.Endpoints = append(s.Spec.Endpoints, mesh.ServiceEndpoint{
				Address: fmt.Sprint("10.0.0.", r.IntN(5)), Port: uint32(80 + i), Dataplane: one("", proxyName(r)), NodeName: one("", "n1", "n2"),
			})
		}
		o = s
	default:
		var options []option
		for _, with := range []option{
			unready, transparent, workload(one(services...)), speaks(mesh.ProtocolHTTP), calls(one(services...), one(services...)), refersTo(one(services...)), onNode(one("n1", "n2")),
		} {
			if r.IntN(3) == 0 {
				options = append(options, with)
			}
		}
		o = dataplane(proxyName(r), fmt.Sprint("10.0.0.", r.IntN(5)), one(services...), options...)
	}
	if r.IntN(4) == 0 {
		b.delete(o)
	} else {
		b.set(o)
	}
}

func proxyName(r *rand.Rand) string { return fmt.Sprint("dp-", r.IntN(5)) }

func TestIncrementalResourcesEqualFreshOnes(t *testing.T) {
	for seed := range uint64(slowtest.Rounds(8, 3)) {
		r := rand.New(rand.NewPCG(seed, 5))
		b := newBench(t)
		b.apply()
		had := map[mesh.ID]resource.Desired{} // by attached proxy
		for step := range 120 {
			if id := mesh.MakeID(mesh.DefaultMesh, proxyName(r)); r.IntN(3) == 0 {
				if _, attached := had[id]; attached {
					b.translator.Detach(id)
					delete(had, id)
				} else {
					had[id] = b.translator.Attach(id, resource.Metadata{Records: r.IntN(2) == 0})
				}
			}
			for range 1 + r.IntN(4) {
				randomStep(r, b)
			}
			changed := b.apply()
			check(t, fmt.Sprintf("seed %d, step %d", seed, step), b.translator, had, changed)
			maps.Copy(had, changed)
		}
		for id := range had {
			b.translator.Detach(id)
		}
		checkEmpty(t, b.translator)
	}
}

// check compares the resources of each attached proxy with a new Translator's.
func check(t *testing.T, when string, tr *Translator, had, changed map[mesh.ID]resource.Desired) {
	t.Helper()
	fresh := NewTranslator(TranslatorOptions{})
	if _, err := fresh.Apply(meshview.Change{After: tr.view}); err != nil {
		t.Fatal(err)
	}
	for id, old := range had {
		now, told := changed[id]
		if !told {
			now = old
		}
		if current, _ := tr.Resources(id); current != now {
			t.Fatalf("%s: %s has other sets than Apply returned", when, id)
		}
		want := fresh.Attach(id, now.For)
		if !want.Known() { // without a Dataplane it keeps its resources
			if told {
				t.Fatalf("%s: %s has no Dataplane but is in the result", when, id)
			}
			continue
		}
		if diff := cmp.Diff(versions(want), versions(now)); diff != "" {
			t.Fatalf("%s: %s (-fresh +incremental):\n%s", when, id, diff)
		}
		if told && old.Known() && cmp.Equal(versions(old), versions(now)) && old.Shared == now.Shared && old.Node == now.Node {
			t.Fatalf("%s: %s is in the result without a change", when, id)
		}
		checkPointers(t, when, tr, old, now)
	}
	for id := range changed {
		if _, attached := had[id]; !attached {
			t.Fatalf("%s: %s is in the result but not attached", when, id)
		}
	}
}

// checkPointers checks that equal resources of proxies' own sets are and stay the same pointer, and that no name is in
// two sets.
func checkPointers(t *testing.T, when string, tr *Translator, old, now resource.Desired) {
	t.Helper()
	if old.Own != now.Own && cmp.Equal(versions(resource.Desired{Own: old.Own}), versions(resource.Desired{Own: now.Own})) {
		t.Fatalf("%s: an equal own set has another pointer", when)
	}
	for _, typ := range resource.Types() {
		for _, r := range now.Own.Of(typ) {
			if was := old.Own.Get(r.Key()); was != nil && was.Version == r.Version && was != r || tr.own[ownKeyOf(r)].resource != r {
				t.Fatalf("%s: %s %s is equal but has another pointer", when, typ.Short(), r.Name)
			}
			if now.Shared.Get(r.Key()) != nil || now.Node.Get(r.Key()) != nil {
				t.Fatalf("%s: %s %s is in two sets", when, typ.Short(), r.Name)
			}
		}
		for _, r := range now.Node.Of(typ) {
			if now.Shared.Get(r.Key()) != nil {
				t.Fatalf("%s: %s %s is in two sets", when, typ.Short(), r.Name)
			}
		}
	}
}

func TestStreamsComeAndGoDuringChanges(t *testing.T) {
	b := newBench(t)
	b.translator.encode = resource.Encode
	var streams sync.WaitGroup
	stop := make(chan struct{})
	for i := range 4 {
		streams.Go(func() {
			id := mesh.MakeID(mesh.DefaultMesh, fmt.Sprint("dp-", i))
			for {
				select {
				case <-stop:
					return
				default:
				}
				b.translator.Attach(id, resource.Metadata{})
				b.translator.Resources(id)
				b.translator.Detach(id)
			}
		})
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		randomStep(r, b)
		b.apply()
	}
	close(stop)
	streams.Wait()
	checkEmpty(t, b.translator)
}

// BenchmarkTranslatorEndpointChange changes one endpoint among 1,000 services. 1,000 attached proxies see it.
func BenchmarkTranslatorEndpointChange(b *testing.B) {
	bench := newBench(b)
	bench.translator.encode = resource.Encode
	for i := range 1000 {
		name := fmt.Sprintf("s%03d", i)
		bench.set(service(name, mesh.ProtocolHTTP, fmt.Sprintf("240.0.%d.%d:80", i/250, i%250)))
		bench.set(dataplane(name+"-1", fmt.Sprintf("10.0.%d.%d", i/250, i%250), name, transparent))
	}
	bench.apply()
	for i := range 1000 {
		bench.translator.Attach(fmt.Sprintf("default/s%03d-1", i), resource.Metadata{})
	}
	objects := []*mesh.Dataplane{
		dataplane("s500-1", "10.0.2.0", "s500", transparent, unready), dataplane("s500-1", "10.0.2.0", "s500", transparent),
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		bench.set(objects[i%2])
		c, _ := bench.builder.Build()
		b.StartTimer()
		if changed, err := bench.translator.Apply(c); err != nil || len(changed) != 1000 {
			b.Fatal(len(changed), err)
		}
	}
}
