package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/retry"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/store"
	"github.com/sonde-mesh/sonde/test/adsclient"
	"github.com/sonde-mesh/sonde/test/anymesh"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// settleWithin is how long the proxies may take to have everything after all is mended. Most of it is for streams that the
// server has ended, and for a busy machine.
const settleWithin = time.Minute

// rest mends everything and checks that all proxies get what they should. Meanwhile the time of the operations stands still.
func (s *soak) rest(ctx context.Context) error {
	if err := s.problem(); err != nil {
		return err
	}
	began := time.Now()
	defer func() { s.began = s.began.Add(time.Since(began)) }()
	s.note("everything is mended")
	if err := s.mend(ctx); err != nil {
		return err
	}
	if err := s.settle(ctx); err != nil {
		return err
	}
	s.counts.rests.Add(1)
	return s.problem()
}

// newcomers is the number of proxies that begin with nothing when all is mended.
const newcomers = 10

// mend brings back what is missing, and has all proxies behave. It changes nothing else, since a change could also bring
// along something that was lost.
func (s *soak) mend(ctx context.Context) error {
	for _, name := range meshes {
		if key := (&mesh.Mesh{Name: name}).Key(); s.writer.objects[key] == nil {
			s.writer.set(anymesh.Mesh(s.random, name), s.writer.fileOf[key])
		}
	}
	for i := range s.o.proxies {
		if s.writer.objects[proxyKey(i)] == nil {
			s.writer.set(anyDataplane(s.random, s.o.services, i), s.writer.fileOf[proxyKey(i)])
		}
	}
	s.writer.mend()
	s.begin()
	if err := s.plane.ControlPlaneReady(ctx); err != nil {
		return err
	}
	s.closeLost()
	for _, m := range s.members {
		m.stalled.Store(0)
		m.refusal.Store(nil)
		s.endSilence(ctx, m)
		m.join(ctx, false)
	}
	for range newcomers {
		m := s.anyMember()
		m.leave(endClose)
		m.join(ctx, true)
	}
	return nil
}

// settle waits until each proxy has what the files say.
func (s *soak) settle(ctx context.Context) error {
	want, err := s.expected()
	if err != nil {
		return err
	}
	for began, diff := time.Now(), "none"; ; {
		if time.Since(began) > settleWithin {
			return fmt.Errorf("%s after all was mended: %s", settleWithin, diff)
		}
		s.forgive(ctx)
		diff = s.different(want)
		if problems, err := s.plane.Metrics(ctx); err != nil {
			diff = err.Error()
		} else if n := problems[`sonde_store_problems{severity="error"}`]; n > 0 && diff == "" {
			diff = fmt.Sprintf("the store has %v problems", n)
		}
		if diff == "" {
			return nil
		}
		if err := retry.Wait(ctx, poll); err != nil {
			return err
		}
		if err := s.problem(); err != nil {
			return err
		}
	}
}

// forgive reconnects proxies that have refused something: a version is not sent twice on one stream.
func (s *soak) forgive(ctx context.Context) {
	for _, m := range s.members {
		if m.refused.Load() {
			m.leave(endClose)
			m.join(ctx, false)
		}
	}
}

// expected returns what the files say, translated in one step in this process.
func (s *soak) expected() (map[string]resource.Desired, error) {
	documents, problems, err := store.Read(s.writer.directory, nil, "")
	if err != nil {
		return nil, err
	}
	for _, p := range problems {
		if p.Severity == store.Error { // warnings are about outbounds to what is not there, and the like
			return nil, fmt.Errorf("mended, and still: %w", p)
		}
	}
	if len(documents) != len(s.writer.objects) {
		return nil, fmt.Errorf("the files have %d objects, written were %d", len(documents), len(s.writer.objects))
	}
	const source = "files"
	b := meshview.NewBuilder(meshview.Options{Sources: []string{source}, RequireJoin: true})
	for i := range s.o.proxies {
		b.Observe(proxyID(i), mesh.Observation{Joined: true, Path: mesh.WorkloadPath(workload(i))})
	}
	for _, d := range documents {
		b.Set(source, d.Object)
	}
	b.Synced(source)
	t := generator.NewTranslator(generator.TranslatorOptions{Report: func(err error) { s.wrong("resource generation failed: %w", err) }})
	if c, ok := b.Build(); ok {
		if _, err := t.Apply(c); err != nil {
			return nil, err
		}
	}
	want := map[string]resource.Desired{}
	for _, m := range s.members {
		want[m.node] = t.Attach(m.node)
	}
	return want, nil
}

// different describes the first proxy that does not have what it should; "" if all have.
func (s *soak) different(want map[string]resource.Desired) string {
	for _, m := range s.members {
		if !m.connected.Load() {
			return m.node + " has no stream"
		}
		if diff := s.compare(m.state, want[m.node]); diff != "" {
			return m.node + " " + diff
		}
	}
	return ""
}

// compare compares one proxy's state: all clusters and listeners, and the endpoints and routes that they name.
func (s *soak) compare(state *adsclient.State, want resource.Desired) string {
	s.counts.checks.Add(1)
	if !state.Settled() {
		return "waits for an answer"
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
		return "differs (-files +proxy):\n" + shorten(diff)
	}
	return ""
}

// shorten keeps only the lines of a diff that differ, up to a limit.
func shorten(diff string) string {
	const most = 20
	var lines []string
	for line := range strings.Lines(diff) {
		if strings.HasPrefix(line, "-") || strings.HasPrefix(line, "+") {
			lines = append(lines, line)
		}
	}
	if len(lines) > most {
		lines = append(lines[:most], fmt.Sprintf("and %d more\n", len(lines)-most))
	}
	return strings.Join(lines, "")
}
