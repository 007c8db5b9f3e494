package pipeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// Sample sizes of each run of ServedState, so that it costs the same in a large mesh.
const (
	sampledProxies  = 3
	sampledServices = 10
)

// settlePause is how long a change of the view may take to reach all streams, before ServedState compares again.
const settlePause = 20 * time.Millisecond

// ServedState compares a random sample of what ADS serves with freshly generated resources, to detect corrupted memory,
// or a change that was not passed on. It is for one goroutine at a time.
type ServedState struct {
	last error // result of the last run during which the view did not change
}

// Check returns how the served resources differ from the view, unless they change meanwhile.
func (s *ServedState) Check(ctx context.Context, p *Pipeline) error {
	for range 3 {
		if err, settled := p.compareServed(); settled {
			s.last = err
			break
		}
		select {
		case <-ctx.Done():
			return s.last
		case <-time.After(settlePause):
		}
	}
	return s.last
}

// compareServed returns how the served resources differ from the view, and false if they change meanwhile.
func (p *Pipeline) compareServed() (_ error, settled bool) {
	view := p.Builder.View()
	if view == nil || p.newest.Load() != view {
		return nil, false
	}
	var errs []error
	for id, served := range p.XDS.Sample(sampledProxies) {
		m, proxy := view.Proxy(id)
		if proxy == nil {
			continue // it keeps its resources
		}
		sample := sampleOf(proxy.Scope.Services)
		err := p.compare(m, proxy, sample, served)
		if err != nil && len(sample) < len(proxy.Scope.Services) {
			// The first service that has an address gets it, and may not be in the sample.
			err = p.compare(m, proxy, proxy.Scope.Services, served)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("proxy %s: %w", id, err))
		}
	}
	return errors.Join(errs...), p.newest.Load() == view
}

// sampleOf returns some names of a sorted list, sorted.
func sampleOf(names []string) []string {
	if len(names) <= sampledServices {
		return names
	}
	sample := make([]string, 0, sampledServices)
	for _, i := range rand.Perm(len(names))[:sampledServices] { //nolint:gosec // a sample, not a secret
		sample = append(sample, names[i])
	}
	slices.Sort(sample)
	return sample
}

// compare generates a proxy's resources for these services, without the Translator's cache, and returns an error for
// the first that is served differently.
func (p *Pipeline) compare(m *meshview.Mesh, proxy *meshview.Proxy, services []string, served resource.Desired) error {
	scope, sampled, in := *proxy.Scope, *proxy, *m
	scope.Services = services
	sampled.Scope = &scope
	_, name := mesh.SplitID(proxy.ID())
	in.Proxies = meshview.Map[meshview.Proxy]{}.With(name, &sampled)
	fresh := generator.NewTranslator(generator.TranslatorOptions{TrustDomain: p.trustDomain})
	if _, err := fresh.Apply(
		meshview.Change{After: &meshview.View{Meshes: map[string]*meshview.Mesh{m.Spec.Name: &in}}}); err != nil {
		return fmt.Errorf("generate: %w", err)
	}
	want := fresh.Attach(proxy.ID(), served.For)
	for _, t := range resource.Types() {
		for _, w := range want.Of(t) {
			switch is := served.Get(w.Key()); {
			case is == nil:
				return fmt.Errorf("%s %q is not served", t.Short(), w.Name)
			case !bytes.Equal(is.Entry, w.Entry) || !bytes.Equal(is.Body.GetValue(), w.Body.GetValue()):
				return fmt.Errorf("%s %q is served as version %s, and is not what the view generates, version %s",
					t.Short(), w.Name, is.Version, w.Version)
			}
		}
	}
	return nil
}
