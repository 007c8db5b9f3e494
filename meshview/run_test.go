package meshview

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRunGathersWhileApplyIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		called := 0
		ctx, cancel := context.WithCancel(t.Context())
		var b *Builder
		b = NewBuilder(Options{Applied: func(c Change) {
			if b.View() != c.After {
				t.Error("Applied was called before View() is the new view")
			}
			called++
		}})
		changes, proceed, done := make(chan Change), make(chan struct{}), make(chan error, 1)
		go func() {
			done <- b.Run(ctx, func(c Change) {
				changes <- c
				<-proceed
			})
		}()
		first := <-changes
		for i := range 50 { // Set does not wait for apply, which is busy
			b.Set("files", service(fmt.Sprint("s", i), "10.0.0.1"))
			b.Observe("default/a", mesh.Observation{Draining: i%2 == 0})
		}
		synctest.Wait()
		if b.View() != nil {
			t.Error("View() shows a view that apply has not finished with")
		}
		proceed <- struct{}{}
		second := <-changes
		if b.View() != first.After {
			t.Error("View() is not the view that apply has finished with")
		}
		if second.Before != first.After || len(second.Services) != 50 {
			t.Errorf("second Change has %d services, want all 50", len(second.Services))
		}
		cancel()
		proceed <- struct{}{}
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
		if b.View() != second.After || called != 2 {
			t.Errorf("the last view is lost, or Applied was called %d times for 2 views", called)
		}
	})
}

func TestRunWaitsForSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		b := NewBuilder(Options{Sources: []string{"files"}})
		applied, done := 0, make(chan error, 1)
		go func() { done <- b.Run(ctx, func(Change) { applied++ }) }()
		b.Set("files", service("db", "10.0.0.1"))
		synctest.Wait()
		if applied != 0 {
			t.Error("applied before the source was synced")
		}
		b.Synced("files")
		synctest.Wait()
		if _, s := b.View().Service("default/db"); applied != 1 || s == nil {
			t.Errorf("applied %d times, service %v", applied, s)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
}

func TestObservationsOutliveTheDataplane(t *testing.T) {
	b := set(service("db", "10.0.0.9"))
	b.Observe("default/api-1", mesh.Observation{Draining: true})
	mustBuild(t, b)
	b.Set("files", dataplane("api-1", "10.0.0.1", "api"))
	for range 2 {
		_, s := mustBuild(t, b).After.Service("default/api")
		if s.Endpoints[0].Health != Draining {
			t.Errorf("endpoint of a draining proxy is %v", s.Endpoints[0].Health)
		}
		b.Delete("files", dataplane("api-1", "", "").Key())
		mustBuild(t, b)
		b.Set("files", dataplane("api-1", "10.0.0.1", "api"))
	}
	b.Observe("default/api-1", mesh.Observation{})
	if _, s := mustBuild(t, b).After.Service("default/api"); s.Endpoints[0].Health != Ready {
		t.Errorf("endpoint after the next Hello is %v", s.Endpoints[0].Health)
	}
}

func TestSourceNamedFirstCounts(t *testing.T) {
	b := NewBuilder(Options{Sources: []string{"files", "kubernetes"}})
	b.Synced("files")
	b.Synced("kubernetes")
	b.Set("kubernetes", service("db", "10.0.0.2"))
	b.Set("files", service("db", "10.0.0.1"))
	b.Set("another", service("db", "10.0.0.3"))
	for _, want := range []struct{ source, address string }{
		{"files", "10.0.0.1:80"}, {"kubernetes", "10.0.0.2:80"}, {"another", "10.0.0.3:80"},
	} {
		_, s := mustBuild(t, b).After.Service("default/db")
		if got := s.Endpoints[0].Address.String(); got != want.address {
			t.Errorf("with %s: endpoint %s, want %s", want.source, got, want.address)
		}
		b.Delete(want.source, service("db").Key())
	}
	if _, s := mustBuild(t, b).After.Service("default/db"); s != nil {
		t.Errorf("service %v no longer has a source", s)
	}
}

// BenchmarkBuilderEndpointChange makes one endpoint unready and ready, among 1,000 services and 1,000 redirected
// proxies.
func BenchmarkBuilderEndpointChange(b *testing.B) {
	builder := NewBuilder(Options{})
	for i := range 1000 {
		name := fmt.Sprintf("s%03d", i)
		builder.Set("files", service(name, fmt.Sprintf("240.0.%d.%d:80", i/250, i%250)))
		builder.Set("files", dataplane(name+"-1", fmt.Sprintf("10.0.%d.%d", i/250, i%250), name, transparent))
	}
	builder.Build()
	objects := []mesh.Object{
		dataplane("s500-1", "10.0.2.0", "s500", transparent, unready), dataplane("s500-1", "10.0.2.0", "s500", transparent),
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		builder.Set("files", objects[i%2])
		if c, ok := builder.Build(); !ok || len(c.Endpoints) != 1 || len(c.Proxies) != 0 {
			b.Fatalf("Change = %v, %v", c, ok)
		}
	}
}
