//go:build soak

package soak

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/store"
	"github.com/sonde-mesh/sonde/test/adsclient"
	"github.com/sonde-mesh/sonde/test/anymesh"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// settleWithin is how long the proxies may take to receive everything after the repair. Most of it is for streams
// that the server has ended, and for a busy machine.
const settleWithin = time.Minute

// rest repairs everything and checks the state of all proxies. Meanwhile, the clock of the operations is stopped.
func (s *soak) rest() {
	began := time.Now()
	defer func() { s.began = s.began.Add(time.Since(began)) }()
	s.note("everything is mended")
	s.mend()
	s.settle()
	s.counts.add("rests")
	s.Logf("after %s, all proxies have the configuration of the files", s.at)
}

// newcomers is the number of proxies that start without configuration after the repair.
const newcomers = 10

// mend restores missing objects and files, and normal behavior of all proxies. It makes no other change, because a
// change could hide a lost update.
func (s *soak) mend() {
	for _, name := range meshes {
		if key := (&mesh.Mesh{Name: name}).Key(); s.writer.objects[key] == nil {
			s.writer.set(anymesh.Mesh(s.random, name), s.writer.fileOf[key])
		}
	}
	for i := range *proxies {
		if s.writer.objects[proxyKey(i)] == nil {
			s.writer.set(anyDataplane(s.random, i), s.writer.fileOf[proxyKey(i)])
		}
	}
	s.writer.mend()
	s.begin()
	s.must(s.machine.ControlPlaneReady(s.Context()))
	s.closeLost()
	for _, m := range s.members {
		m.stalled.Store(0)
		m.refusal.Store(nil)
		s.endSilence(m)
		m.join(false)
	}
	for range newcomers {
		m := s.anyMember()
		m.leave(endClose)
		m.join(true)
	}
}

// settle waits until each proxy has the configuration of the files.
func (s *soak) settle() {
	want := s.expected()
	s.must(harness.Poll(s.Context(), "all proxies to have the configuration of the files", func(ctx context.Context) error {
		if s.Failed() {
			s.FailNow()
		}
		s.forgive()
		metrics, err := s.machine.Metrics(ctx)
		if err != nil {
			return err
		}
		if n := metrics[`sonde_store_problems{severity="error"}`]; n > 0 {
			return fmt.Errorf("the store has %v problems", n)
		}
		return s.different(want)
	}))
}

// forgive reconnects proxies that have refused a resource, because the server sends a version only
// once per stream.
func (s *soak) forgive() {
	for _, m := range s.members {
		if m.refused.Load() {
			m.leave(endClose)
			m.join(false)
		}
	}
}

// expected returns the resources of the files' objects, translated in this process.
func (s *soak) expected() map[string]resource.Desired {
	documents, problems, err := store.Read(s.writer.directory, nil, "")
	s.must(err)
	for _, p := range problems {
		if p.Severity == store.Error { // warnings are about outbounds to missing services, and the like
			s.Fatalf("mended, and still: %v", p)
		}
	}
	if len(documents) != len(s.writer.objects) {
		s.Fatalf("the files have %d objects, written were %d", len(documents), len(s.writer.objects))
	}
	const source = "files"
	b := meshview.NewBuilder(meshview.Options{Sources: []string{source}, RequireJoin: true})
	for i := range *proxies {
		b.Observe(proxyID(i), mesh.Observation{Joined: true, Path: mesh.WorkloadPath(workload(i))})
	}
	for _, d := range documents {
		b.Set(source, d.Object)
	}
	b.Synced(source)
	t := generator.NewTranslator(generator.TranslatorOptions{Report: func(err error) { s.Errorf("failed to generate resources: %v", err) }})
	if c, ok := b.Build(); ok {
		_, err := t.Apply(c)
		s.must(err)
	}
	want := map[string]resource.Desired{}
	for _, m := range s.members {
		want[m.node] = t.Attach(m.node, resource.Metadata{})
	}
	return want
}

// different returns an error unless all proxies have the expected resources.
func (s *soak) different(want map[string]resource.Desired) error {
	for _, m := range s.members {
		if !m.connected.Load() {
			return errors.New(m.node + " has no stream")
		}
		if err := compare(m.state, want[m.node]); err != nil {
			return fmt.Errorf("%s %w", m.node, err)
		}
	}
	return nil
}

// compare compares the state of one proxy: all clusters and listeners, and the endpoints and routes that they
// name.
func compare(state *adsclient.State, want resource.Desired) error {
	if !state.Settled() {
		return errors.New("waits for an answer")
	}
	has := state.Contents()
	should := map[resource.Type]map[string]string{}
	for _, t := range resource.Types() {
		should[t] = map[string]string{}
		for _, r := range want.Of(t) {
			_, named := has[t][r.Name]
			if named || t == resource.Cluster || t == resource.Listener {
				should[t][r.Name] = r.Version
			}
		}
	}
	if diff := cmp.Diff(should, has); diff != "" {
		return fmt.Errorf("differs (-files +proxy):\n%.4000s", diff)
	}
	return nil
}
