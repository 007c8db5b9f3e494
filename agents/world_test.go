package agents_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/sonde-mesh/sonde/agents"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/identity/token"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/mtls"
	"github.com/sonde-mesh/sonde/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

// world is a control plane with real gRPC, TLS, state directory and builder. It can be stopped and started again.
type world struct {
	t     *testing.T
	state *store.State
	bend  func(*agents.Options)
	// ahead is how far the control plane's clock is ahead of the real one.
	ahead atomic.Int64

	authority *identity.Authority
	serving   *serving.Certificate
	tokens    *token.Issuer
	server    *agents.Server
	builder   *meshview.Builder
	registry  *prometheus.Registry
	log       *lockedBuffer
	address   string
	stop      func()

	mu       sync.Mutex
	observed []mesh.ID
}

func newWorld(t *testing.T, bend func(*agents.Options)) *world {
	t.Helper()
	state, err := store.OpenState(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = state.Close() })
	w := &world{t: t, state: state, bend: bend}
	w.start()
	t.Cleanup(func() { w.stop() })
	return w
}

func (w *world) now() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) }

func (w *world) start() {
	w.t.Helper()
	w.registry = prometheus.NewRegistry()
	var err error
	w.authority, err = identity.New(identity.Options{Secrets: w.state, Records: w.state, Now: w.now, Registerer: w.registry})
	if err != nil {
		w.t.Fatal(err)
	}
	if w.serving, err = serving.Open(serving.Options{Storage: w.state, Now: w.now}); err != nil {
		w.t.Fatal(err)
	}
	if w.tokens, err = token.Open(token.Options{Storage: w.state, Now: w.now}); err != nil {
		w.t.Fatal(err)
	}
	w.log = &lockedBuffer{}
	w.builder = meshview.NewBuilder(meshview.Options{
		TrustDomain: mesh.DefaultTrustDomain, Sources: []string{"test"}, RequireJoin: true,
		Applied: func(c meshview.Change) { w.server.Changed(c) },
	})
	o := agents.Options{
		Authority: w.authority, Tokens: w.tokens, Storage: w.state, View: w.builder.View, Now: w.now, Version: "1.2.3", Registerer: w.registry,
		Logger: slog.New(slog.NewTextHandler(w.log, nil)),
		Bootstrap: func(p *meshview.Proxy, controlPlane string, _ time.Duration) ([]byte, error) {
			return []byte(p.ID() + " by " + controlPlane), nil
		},
		Observe: func(id mesh.ID, o mesh.Observation) {
			w.mu.Lock()
			w.observed = append(w.observed, id)
			w.mu.Unlock()
			w.builder.Observe(id, o)
		},
	}
	o.SetLimits(agents.Limits{Recheck: 20 * time.Millisecond, SilentAfter: time.Minute})
	if w.bend != nil {
		w.bend(&o)
	}
	if w.server, err = agents.New(o); err != nil {
		w.t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.address = listener.Addr().String()
	c, err := mtls.New(mtls.Options{TLS: w.serving.TLS(), Verifier: w.authority, Now: w.now, Registerer: w.registry})
	if err != nil {
		w.t.Fatal(err)
	}
	g := grpc.NewServer(c.ServerOptions()...)
	w.server.Register(g)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = g.Serve(listener) })
	running.Go(func() { _ = w.builder.Run(ctx, func(meshview.Change) {}) })
	running.Go(func() { _ = w.server.Run(ctx) })
	w.stop = sync.OnceFunc(func() {
		cancel()
		g.Stop()
		running.Wait()
	})
}

func (w *world) restart() {
	w.t.Helper()
	w.stop()
	w.start()
}

// fill adds mesh "default" with dataplanes of workload "web", and waits for the view.
func (w *world) fill(names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.put(dataplane("default", name, "web"))
	}
	w.builder.Synced("test")
	w.eventually("the view has every dataplane", func() bool {
		for _, name := range names {
			if _, p := w.builder.View().Proxy("default/" + name); p == nil {
				return false
			}
		}
		return true
	})
}

func (w *world) put(o mesh.Object) {
	w.t.Helper()
	o.SetDefaults()
	if err := o.Validate(); err != nil {
		w.t.Fatal(err)
	}
	w.builder.Set("test", o)
}

func dataplane(meshName, name, workload string) *mesh.Dataplane {
	d := &mesh.Dataplane{}
	d.Mesh, d.Name = meshName, name
	d.Spec.Networking.Address = "10.0.0.1"
	d.Spec.Networking.Inbound = []mesh.Inbound{{Port: 8080, Tags: mesh.Tags{mesh.TagService: workload}}}
	return d
}

// eventually polls until holds returns true.
func (w *world) eventually(what string, holds func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		if time.Now().After(deadline) {
			w.t.Fatalf("not within %s: %s", patience, what)
		}
		<-tick.C
	}
}

func (w *world) token(s identity.Subject, validity time.Duration) string {
	w.t.Helper()
	token, _, err := w.tokens.Issue(s, validity)
	if err != nil {
		w.t.Fatal(err)
	}
	return token
}

// metric returns the sum of a metric's values. If the label value is not empty, only those with it count.
func (w *world) metric(name, label string) float64 {
	w.t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
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

// lockedBuffer is a log that can be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// lines returns the lines that contain all these texts.
func (l *lockedBuffer) lines(texts ...string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for line := range strings.Lines(l.b.String()) {
		all := true
		for _, text := range texts {
			all = all && strings.Contains(line, text)
		}
		if all {
			found = append(found, line)
		}
	}
	return found
}

// endpoint returns the endpoint of a proxy in a service, nil if there is none.
func (w *world) endpoint(service, proxy string) *meshview.Endpoint {
	_, s := w.builder.View().Service(mesh.MakeID("default", service))
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
func (w *world) becomes(service string, health meshview.Health, reason meshview.Reason) {
	w.t.Helper()
	w.eventually("the endpoint has its health", func() bool {
		e := w.endpoint(service, "web-1")
		return e != nil && e.Health == health && e.Reason == reason
	})
}

// state returns the state of the agent of default/web-1.
func (w *world) phase() adminv1.AgentState_Phase {
	return w.server.States()["default/web-1"].GetPhase()
}

// hasRecords waits until the authority has these records of proxies.
func (w *world) hasRecords(want ...string) {
	w.t.Helper()
	w.eventually("the authority has the records that it should have", func() bool {
		names, err := w.state.List("meshes/default/proxies")
		return err == nil && slices.Equal(names, want)
	})
}
