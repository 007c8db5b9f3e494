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

// settleWithin is how long the proxies may take to have everything after all is mended. Most of it is for streams that the
// server has ended, and for a busy machine.
const settleWithin = time.Minute

// rest mends everything and checks that all proxies get what they should. Meanwhile the time of the operations stands still.
func (s *soak) rest() {
	began := time.Now()
	defer func() { s.began = s.began.Add(time.Since(began)) }()
	s.note("everything is mended")
	s.mend()
	s.settle()
	s.counts.add("rests")
	s.Logf("after %s every proxy has what the files say", s.at)
}

// newcomers is the number of proxies that begin with nothing when all is mended.
const newcomers = 10

// mend brings back what is missing, and has all proxies behave. It changes nothing else, since a change could also bring
// along something that was lost.
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

// settle waits until each proxy has what the files say.
func (s *soak) settle() {
	want := s.expected()
	s.must(harness.Poll(s.Context(), "all proxies to have what the files say", func(ctx context.Context) error {
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

// forgive reconnects proxies that have refused something: a version is not sent twice on one stream.
func (s *soak) forgive() {
	for _, m := range s.members {
		if m.refused.Load() {
			m.leave(endClose)
			m.join(false)
		}
	}
}

// expected returns what the files say, translated in one step in this process.
func (s *soak) expected() map[string]resource.Desired {
	documents, problems, err := store.Read(s.writer.directory, nil, "")
	s.must(err)
	for _, p := range problems {
		if p.Severity == store.Error { // warnings are about outbounds to what is not there, and the like
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
	t := generator.NewTranslator(generator.TranslatorOptions{Report: func(err error) { s.Errorf("resource generation failed: %v", err) }})
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

// different is an error unless all proxies have what they should.
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

// compare compares one proxy's state: all clusters and listeners, and the endpoints and routes that they name.
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
