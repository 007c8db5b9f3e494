package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// redirected is a pod that sees all services.
func redirected(uid, address string) *mesh.Dataplane {
	d := pod(uid, address)
	d.Spec.Networking.TransparentProxying = &mesh.TransparentProxying{}
	return d
}

func TestServedState(t *testing.T) {
	const services = 3 * sampledServices
	tests := map[string]struct {
		corrupt func(s *adsServer, id mesh.ID, d resource.Desired)
		want    string // "" if nothing is wrong
	}{
		"as generated": {func(*adsServer, mesh.ID, resource.Desired) {}, ""},
		"a bit flips": {func(_ *adsServer, _ mesh.ID, d resource.Desired) {
			entry := d.Of(resource.Listener)[0].Entry
			entry[len(entry)-1] ^= 1
		}, "and is not what the view generates"},
		"a change is not passed on": {func(s *adsServer, id mesh.ID, d resource.Desired) {
			s.put(redirected("1", "10.0.0.9"))
			s.XDS.Publish(map[mesh.ID]resource.Desired{id: d})
		}, "and is not what the view generates"},
		"nothing is served": {func(s *adsServer, id mesh.ID, _ resource.Desired) {
			s.XDS.Publish(map[mesh.ID]resource.Desired{id: {}})
		}, "is not served"},
		"a proxy without a Dataplane keeps what it had": {func(s *adsServer, _ mesh.ID, _ resource.Desired) {
			s.Builder.Delete("", redirected("1", "10.0.0.1").Key())
			<-s.applied
		}, ""},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			s := serveADS(t)
			one := redirected("1", "10.0.0.1")
			s.put(one)
			for i := range services {
				o := &mesh.Service{Meta: mesh.Meta{Mesh: mesh.DefaultMesh, Name: fmt.Sprintf("web-%02d", i)}}
				// Each second one has the address of the one before, which alone gets it.
				o.Spec.Addresses = []string{fmt.Sprintf("10.96.0.%d:80", i/2+1)}
				o.Spec.Endpoints = []mesh.ServiceEndpoint{{Address: "10.0.1.1", Port: 80}}
				o.SetDefaults()
				s.Builder.Set("", o)
				<-s.applied
			}
			if _, err := s.stream(identity.SubjectOf(one)).Recv(); err != nil {
				t.Fatal(err)
			}
			served := s.XDS.Sample(10)
			if len(served) != 1 || len(served[one.ID()].Of(resource.Cluster)) < services {
				t.Fatalf("the sample is %v", served)
			}
			var state ServedState
			if err := state.Check(t.Context(), s.Pipeline); err != nil {
				t.Fatalf("before: %v", err)
			}
			tc.corrupt(s, one.ID(), served[one.ID()])
			err := state.Check(t.Context(), s.Pipeline)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("after: %v, want %q", err, tc.want)
			}
		})
	}
}

// An Envoy is served what its bootstrap asks for.
func TestServedStateWithRecords(t *testing.T) {
	for value, recorded := range map[string]bool{"true": true, "false": false} {
		virtual.Run(t, value, func(t *testing.T) {
			s := serveADS(t)
			s.metadata = &structpb.Struct{Fields: map[string]*structpb.Value{resource.NodeRecords: structpb.NewStringValue(value)}}
			m := mesh.ImpliedMesh(mesh.DefaultMesh)
			m.Spec.MTLS = &mesh.MTLS{EnabledBackend: "ca", Backends: []mesh.Backend{{Name: "ca", Type: mesh.BackendBuiltin, Mode: mesh.ModePermissive}}}
			m.SetDefaults()
			s.Builder.Set("", m)
			<-s.applied
			one := redirected("1", "10.0.0.1")
			s.put(one)
			if _, err := s.stream(identity.SubjectOf(one)).Recv(); err != nil {
				t.Fatal(err)
			}
			served := s.XDS.Sample(1)[one.ID()]
			if got := served.Get(resource.Name{Type: resource.Cluster, Name: "agent:records"}) != nil; got != recorded || served.For.Records != recorded {
				t.Errorf("records are served: %t, for %+v", got, served.For)
			}
			if err := (&ServedState{}).Check(t.Context(), s.Pipeline); err != nil {
				t.Errorf("check() = %v", err)
			}
		})
	}
}

// While a change is on its way nothing is compared, and what was found before counts.
func TestServedStateDuringAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveADS(t)
		view := s.newest.Load()
		defer s.newest.Store(view)
		s.newest.Store(nil)
		state := ServedState{last: errors.New("before")}
		if err := state.Check(t.Context(), s.Pipeline); err == nil || err.Error() != "before" {
			t.Errorf("check() = %v, want what was found before", err)
		}
	})
}

// BenchmarkServedState measures one run in a cluster of 2,000 pods and 100 Services, ten of whose pods have a stream.
func BenchmarkServedState(b *testing.B) {
	applied := make(chan struct{}, 1)
	p := New(Options{
		View: meshview.Options{ExplicitMeshes: true, Sources: []string{"bench"}, Applied: func(meshview.Change) { applied <- struct{}{} }},
	}, func(context.Context, string, *meshview.Proxy) error { return nil })
	ids := benchCluster(p.Builder, mesh.ProtocolHTTP)
	ctx, cancel := context.WithCancel(b.Context())
	var group errgroup.Group
	group.Go(func() error { return p.Run(ctx) })
	<-applied
	var synced sync.WaitGroup
	for _, id := range ids[:10] {
		synced.Add(1)
		s := newBenchStream(ctx, id, synced.Done)
		group.Go(func() error { return p.XDS.DeltaAggregatedResources(s) })
	}
	synced.Wait()
	var state ServedState
	for b.Loop() {
		if err := state.Check(ctx, p); err != nil {
			b.Fatal(err)
		}
	}
	cancel()
	_ = group.Wait() // streams end with ctx
	p.XDS.Wait()
}
