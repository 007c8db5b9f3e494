package adsclient

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/test/featuretest"
	"github.com/sonde-mesh/sonde/xds"
	"github.com/sonde-mesh/sonde/xds/resource"
)

const proxy = "default/web-1"

func start(t *testing.T) *featuretest.Feature {
	t.Helper()
	return featuretest.Start(t, "../../feature/testdata/two-services")
}

// options are the options of a client of the proxy, with its certificate.
func options(t *testing.T, f *featuretest.Feature, s *State) Options {
	t.Helper()
	config, err := f.TLS(proxy)
	if err != nil {
		t.Fatal(err)
	}
	return Options{Address: "control-plane", Dial: f.Dial, Node: proxy, State: s, TLS: config}
}

// run opens a stream, and returns a function that ends it.
func run(t *testing.T, o Options) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != context.Canceled { //nolint:errorlint // it is returned unwrapped
			t.Errorf("Run() error = %v, want %v", err, context.Canceled)
		}
	})
	t.Cleanup(stop)
	return stop
}

// has checks that the proxy has everything that the simulated Envoy has.
func has(t *testing.T, s *State, envoy *featuretest.Client) {
	t.Helper()
	envoy.Sync()
	want := envoy.Has()
	var got []string
	for kind, all := range s.Contents() {
		for name, version := range all {
			got = append(got, kind.Short()+" "+name+" "+version)
		}
	}
	if slices.Sort(got); !s.Settled() || !slices.Equal(got, want) {
		t.Fatalf("the client has %q, want %q", got, want)
	}
}

// counter is an Observer.
type counter struct{ connected, resources, acked atomic.Int64 }

func (c *counter) Connected()                             { c.connected.Add(1) }
func (c *counter) Resource(resource.Type, []byte, []byte) { c.resources.Add(1) }
func (c *counter) Acked()                                 { c.acked.Add(1) }

func TestProxyFollowsReferences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		envoy, s := f.Connect("web-1", envoysim.Delta), NewState(NewCatalog())
		run(t, options(t, f, s))
		has(t, s, envoy)
		for _, file := range []string{"web-1-cache.yaml", "cache-1.yaml", "api-2-canary.yaml", "web-1-without-api.yaml", "mesh-off.yaml", "../web-1.yaml"} {
			f.Put(file)
			has(t, s, envoy)
		}
	})
}

func TestReconnectSaysWhatItHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		envoy, s := f.Connect("web-1", envoysim.Delta), NewState(NewCatalog())
		stop := run(t, options(t, f, s))
		has(t, s, envoy)
		stop()

		o := options(t, f, s)
		count := &counter{}
		o.Observer = count
		run(t, o)
		f.Put("cache-1.yaml")
		f.Put("web-1-cache.yaml")
		has(t, s, envoy)
		if got := count.resources.Load(); got != 4 {
			t.Errorf("got %d resources after the proxy reported what it has, want the 4 of the new service", got)
		}
	})
}

func TestLargeResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		many := &mesh.Service{Meta: mesh.Meta{Mesh: mesh.DefaultMesh, Name: "api"}}
		for i := range 20_000 { // many times the size of the HTTP/2 windows
			many.Spec.Endpoints = append(many.Spec.Endpoints, mesh.ServiceEndpoint{Address: fmt.Sprintf("10.9.%d.%d", i/250, 1+i%250), Port: 80})
		}
		f.Set(many)
		envoy := f.Connect("web-1", envoysim.Delta)
		for name, rate := range map[string]int{"all at once": 0, "slowly, with small windows": 4 << 20} {
			s := NewState(NewCatalog())
			o := options(t, f, s)
			o.BytesPerSecond = rate
			o.Received = new(atomic.Int64)
			stop := run(t, o)
			time.Sleep(time.Second) // longer than needed at that rate
			has(t, s, envoy)
			if got := o.Received.Load(); got < 400_000 {
				t.Errorf("%s: received %d bytes, want more", name, got)
			}
			stop()
		}
	})
}

func TestSilentClientDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		o := options(t, f, NewState(NewCatalog()))
		o.Silent = true
		run(t, o)
		synctest.Wait()
		if all := f.Status(); len(all) != 1 || len(all[0].Types) == 0 || all[0].Types[0].Sent == "" || all[0].Types[0].Acked != "" {
			t.Errorf("status %+v, want clusters that are sent but not ACKed", all)
		}
	})
}

func TestRefusalIsTheServersStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		o := options(t, f, NewState(NewCatalog()))
		o.Node = "default/api-1"
		err := Run(t.Context(), o)
		if status.Code(err) != codes.PermissionDenied || !strings.Contains(status.Convert(err).Message(), o.Node) {
			t.Errorf("Run() error = %v, want PermissionDenied with the server's message", err)
		}
	})
}

func TestRefusedVersionIsNotApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		envoy, s := f.Connect("web-1", envoysim.Delta), NewState(NewCatalog())
		o := options(t, f, s)
		var refuses atomic.Bool
		o.Refuse = func(kind resource.Type, name []byte) string {
			if kind == resource.Cluster && string(name) == "api" && refuses.Load() {
				return "I do not like " + string(name)
			}
			return ""
		}
		run(t, o)
		has(t, s, envoy)
		envoy.Refuse(resource.Cluster, "api", "I do not like it either")
		refuses.Store(true)
		f.Put("api-2-canary.yaml") // another identity, so the cluster changes
		envoy.Sync()
		known := func(st xds.ProxyStatus) bool {
			return slices.ContainsFunc(st.Types, func(of xds.TypeStatus) bool { return len(of.NACKs) == 1 && of.NACKs[0].Reason == "I do not like api" })
		}
		if all := f.Status(); !slices.ContainsFunc(all, known) {
			t.Errorf("status %+v, want the refused resource", all)
		}
		f.Put("web-1-cache.yaml")
		has(t, s, envoy)
	})
}

func TestContentsNamesWhatIsNotThere(t *testing.T) {
	t.Parallel()
	s := NewState(NewCatalog())
	var d difference
	for _, name := range []string{"a", "b"} {
		r, err := resource.Encode(name, edsCluster(name))
		if err != nil {
			t.Fatal(err)
		}
		n, v := s.catalog.number([]byte(name), []byte(r.Version))
		if err := s.put(clusters, n, v, r.Body.GetValue(), &d); err != nil {
			t.Fatal(err)
		}
	}
	a, v := s.catalog.number([]byte("a"), []byte("1"))
	if err := s.put(endpoints, a, v, nil, &d); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"a": "1", "b": ""}
	if got := s.Contents()[resource.Endpoint]; s.Count()[resource.Endpoint] != 1 || !maps.Equal(got, want) {
		t.Errorf("Contents() = %q with %v, want %q", got, s.Count(), want)
	}
}
