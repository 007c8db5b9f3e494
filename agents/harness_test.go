package agents_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/sonde-mesh/sonde/agents"
	"github.com/sonde-mesh/sonde/agents/join"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/mtls"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/identity/token"
	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const planeAddress = "127.0.0.1:5678"

// harness is a control plane with real gRPC, TLS, state directory and builder. It can be restarted.
type harness struct {
	t       *testing.T
	state   *store.State
	network *virtual.Network
	bend    func(*agents.Options)
	// apply is called with each change of the view before it becomes current. Default: no call.
	apply func(meshview.Change)
	// pods says that the source lists the proxies, as on Kubernetes, so that no proxy is recorded.
	pods bool
	// age is the maximum age of connections, grace how long calls may continue after that. Default: no maximum.
	age, grace time.Duration
	// ahead is how far the control plane's clock is ahead of the bubble's.
	ahead atomic.Int64

	authority *identity.Authority
	serving   *serving.Certificate
	tokens    *token.Issuer
	server    *agents.Server
	builder   *meshview.Builder
	registry  *prometheus.Registry
	log       *logtest.Buffer
	stop      func()

	mu       sync.Mutex
	observed []mesh.ID
}

func newHarness(t *testing.T, bend func(*agents.Options)) *harness {
	t.Helper()
	h := &harness{bend: bend}
	h.open(t)
	return h
}

// open starts the control plane with an empty state. It stops with the test.
func (h *harness) open(t *testing.T) {
	t.Helper()
	state, err := store.OpenState(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = state.Close() })
	h.t, h.state, h.network = t, state, virtual.NewNetwork()
	h.start()
	t.Cleanup(func() { h.stop() })
}

// dial connects an agent to the control plane.
func (h *harness) dial(ctx context.Context, address string) (net.Conn, error) {
	return h.network.DialFrom("127.0.0.1")(ctx, "tcp", address)
}

// proxies implements identity.Options.Proxies.
func (h *harness) proxies(meshName string) (iter.Seq2[string, string], bool) {
	v := h.builder.View()
	return func(yield func(string, string) bool) {
		if m := v.Mesh(meshName); m != nil {
			for name, p := range m.Proxies.All() {
				if !yield(name, p.Dataplane.Identity.Instance) {
					return
				}
			}
		}
	}, v != nil
}

func (h *harness) now() time.Time { return time.Now().Add(time.Duration(h.ahead.Load())) }

func (h *harness) start() {
	h.t.Helper()
	h.registry = prometheus.NewRegistry()
	var err error
	kept := identity.Options{Secrets: h.state.Secrets(), Now: h.now, Registerer: h.registry}
	if h.pods {
		kept.Proxies = h.proxies
	} else {
		kept.Records = h.state
	}
	h.authority, err = identity.New(h.t.Context(), kept)
	if err != nil {
		h.t.Fatal(err)
	}
	if h.serving, err = serving.Open(h.t.Context(), serving.Options{Storage: h.state.Secrets(), Now: h.now}); err != nil {
		h.t.Fatal(err)
	}
	if h.tokens, err = token.Open(h.t.Context(), token.Options{Storage: h.state.Secrets(), Now: h.now}); err != nil {
		h.t.Fatal(err)
	}
	h.log = &logtest.Buffer{}
	h.builder = meshview.NewBuilder(meshview.Options{
		TrustDomain: mesh.DefaultTrustDomain, Sources: []string{"test"}, RequireJoin: !h.pods,
		Applied: func(c meshview.Change) { h.server.Changed(c) },
	})
	o := agents.Options{
		Authority: h.authority, ServingCA: h.serving, Tokens: h.tokens, Storage: h.state, View: h.builder.View, Now: h.now, Version: "1.2.3", Registerer: h.registry,
		Logger: slog.New(slog.NewTextHandler(h.log, nil)),
		Bootstrap: func(p *meshview.Proxy, s join.Sidecar) ([]byte, error) {
			return fmt.Appendf(nil, "%s by %s with %d MiB", p.ID(), s.ControlPlane, s.Memory>>20), nil
		},
		Observe: func(id mesh.ID, o mesh.Observation) {
			h.mu.Lock()
			h.observed = append(h.observed, id)
			h.mu.Unlock()
			h.builder.Observe(id, o)
		},
	}
	if h.bend != nil {
		h.bend(&o)
	}
	if h.server, err = agents.New(o); err != nil {
		h.t.Fatal(err)
	}
	h.run()
}

// run runs the control plane until stop is called.
func (h *harness) run() {
	h.t.Helper()
	listener, err := h.network.Listen(h.t.Context(), "tcp", planeAddress)
	if err != nil {
		h.t.Fatal(err)
	}
	c, err := mtls.New(mtls.Options{TLS: h.serving.TLS(), Verifier: h.authority, Joins: agents.Joins, Now: h.now, Registerer: h.registry})
	if err != nil {
		h.t.Fatal(err)
	}
	g := grpc.NewServer(append(c.ServerOptions(),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: h.age, MaxConnectionAgeGrace: h.grace}))...)
	h.server.Register(g)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = g.Serve(listener) })
	apply := h.apply
	if apply == nil {
		apply = func(meshview.Change) {}
	}
	running.Go(func() { _ = h.builder.Run(ctx, apply) })
	running.Go(func() { _ = h.server.Run(ctx) })
	h.stop = sync.OnceFunc(func() {
		cancel()
		g.Stop()
		running.Wait()
	})
}

func (h *harness) restart() {
	h.t.Helper()
	h.stop()
	h.start()
}

// fill adds dataplanes of workload "web" in mesh "default" to the view.
func (h *harness) fill(names ...string) {
	h.t.Helper()
	for _, name := range names {
		h.put(dataplane("default", name, "web"))
	}
	h.synced()
}

// synced makes the builder build the first view.
func (h *harness) synced() {
	h.builder.Synced("test")
	synctest.Wait()
}

// put adds an object to the view.
func (h *harness) put(o mesh.Object) {
	h.t.Helper()
	o.SetDefaults()
	if err := o.Validate(); err != nil {
		h.t.Fatal(err)
	}
	h.builder.Set("test", o)
	synctest.Wait()
}

func (h *harness) delete(name string) {
	h.builder.Delete("test", dataplane("default", name, "web").Key())
	synctest.Wait()
}

func dataplane(meshName, name, workload string) *mesh.Dataplane {
	d := &mesh.Dataplane{}
	d.Mesh, d.Name = meshName, name
	d.Spec.Networking.Address = "10.0.0.1"
	d.Spec.Networking.Inbound = []mesh.Inbound{{Port: 8080, Tags: mesh.Tags{mesh.TagService: workload}}}
	return d
}

// until polls until check returns nil, and then waits until all goroutines are idle.
func (h *harness) until(what string, check func() error) {
	h.t.Helper()
	wait.Until(h.t, what, check)
	synctest.Wait()
}

// eventually is until with a condition.
func (h *harness) eventually(what string, holds func() bool) {
	h.t.Helper()
	wait.For(h.t, what, holds)
	synctest.Wait()
}

// different returns a diff as an error, nil if it is empty.
func different(diff string) error {
	if diff == "" {
		return nil
	}
	return errors.New(diff)
}

func (h *harness) token(s identity.Subject, validity time.Duration) string {
	h.t.Helper()
	token, _, err := h.tokens.Issue(s, validity)
	if err != nil {
		h.t.Fatal(err)
	}
	return token
}

// metric returns the sum of a metric's values. If label is not empty, only series with this label value count.
func (h *harness) metric(name, label string) float64 {
	h.t.Helper()
	families, err := h.registry.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	sum := 0.
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" || len(m.GetLabel()) > 0 && m.GetLabel()[0].GetValue() == label {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// endpoint returns the endpoint of a proxy in a service, or nil.
func (h *harness) endpoint(service, proxy string) *meshview.Endpoint {
	return endpointOf(h.builder.View(), service, proxy)
}

func endpointOf(v *meshview.View, service, proxy string) *meshview.Endpoint {
	_, s := v.Service(mesh.MakeID("default", service))
	if s == nil {
		return nil
	}
	for _, e := range s.Endpoints {
		if e.Proxy == proxy {
			return &e
		}
	}
	return nil
}

// becomes waits until the endpoint of web-1 in a service has this health.
func (h *harness) becomes(service string, health meshview.Health, reason meshview.Reason) {
	h.t.Helper()
	h.eventually("the endpoint has its health", func() bool {
		e := h.endpoint(service, "web-1")
		return e != nil && e.Health == health && e.Reason == reason
	})
}

// phase returns the phase of the agent of default/web-1.
func (h *harness) phase() adminv1.AgentState_Phase {
	return h.server.States()["default/web-1"].GetPhase()
}

// hasRecords waits until the authority has these records of proxies.
func (h *harness) hasRecords(want ...string) {
	h.t.Helper()
	h.eventually("the authority has the records that it should have", func() bool {
		names, err := h.state.List("meshes/default/proxies")
		return err == nil && slices.Equal(names, want)
	})
}
