package kube

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/test/adsclient"
	"github.com/sonde-mesh/sonde/test/bench/arrivals"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// comeBack is the delay before agents and Envoys reconnect.
const comeBack = 100 * time.Millisecond

// joinAtOnce is how many agents join at the same time. Another benchmark measures the limits for callers without a
// certificate.
const joinAtOnce = 16

// fleet is a set of machines whose agents have sessions, and whose Envoys have ADS streams, with some
// replicas.
type fleet struct {
	namespace string
	service   string // each machine has an outbound to it
	proxies   []*proxy

	planes  atomic.Pointer[[]*plane]          // targets of new connections
	there   atomic.Pointer[arrivals.Arrivals] // counts ADS streams with a complete configuration, and then accepted sessions
	change  atomic.Pointer[arrivals.Arrivals] // counts a change of the service's endpoints
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// proxy is one machine, and the Observer of its own ADS stream.
type proxy struct {
	*fleet
	*machine
	index   int
	state   *adsclient.State
	arrived bool // the current response contains the change
}

var _ adsclient.Observer = (*proxy)(nil)

// newFleet writes the Dataplanes of machines, which join at a control plane.
func newFleet(b *testing.B, p *plane, namespace, service string, size int) *fleet {
	b.Helper()
	f := &fleet{namespace: namespace, service: service}
	f.change.Store(arrivals.New(0, 0, ""))
	b.Cleanup(func() {
		if _, err := cluster.Do(context.Background(), http.MethodDelete, sondePath(namespace, "dataplanes"), "", ""); err != nil {
			b.Error(err)
		}
	})
	client := newClient(b)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret(b, client, "sonde-serving-ca.crt"))
	admin, ctx := p.adminClient(b, client)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(joinAtOnce)
	for i := range size {
		m := &machine{t: b, name: fmt.Sprintf("proxy-%d.%s", i, namespace), process: rand.Text(), started: time.Now(), key: ca.NewKey(), roots: roots}
		f.proxies = append(f.proxies, &proxy{fleet: f, machine: m, index: i})
		group.Go(func() error { return f.proxies[i].enter(ctx, admin, p) })
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	return f
}

// enter writes the Dataplane, and joins as soon as the control plane has read it.
func (p *proxy) enter(ctx context.Context, admin adminv1.AdminServiceClient, at *plane) error {
	dataplane := fmt.Sprintf(`{apiVersion: sonde.dev/v1alpha1, kind: Dataplane, metadata: {name: proxy-%d}, spec: {networking: {address: 10.1.%d.%d,
 inbound: [{port: 80, servicePort: 8080, tags: {kuma.io/service: caller}}], outbound: [{port: 10001, tags: {kuma.io/service: %s}}]}}}`,
		p.index, p.index/250, 1+p.index%250, p.service)
	if _, err := cluster.Do(ctx, http.MethodPost, sondePath(p.namespace, "dataplanes")+"?fieldValidation=Strict", "application/yaml", dataplane); err != nil {
		return err
	}
	r, err := admin.GenerateDataplaneToken(ctx, &adminv1.GenerateDataplaneTokenRequest{Mesh: "default", Name: p.name, Workload: "caller", ValidFor: durationpb.New(time.Hour)})
	if err != nil {
		return err
	}
	p.token = r.GetToken()
	conn := p.dial(at)
	defer func() { _ = conn.Close() }() // no more calls use it
	return harness.Poll(ctx, p.name+" to join", func(ctx context.Context) error { return p.joinOver(ctx, conn) })
}

// open connects all proxies at once without a cached configuration, and returns when each has its whole
// configuration and a session.
func (f *fleet) open(b *testing.B, planes []*plane) []time.Duration {
	b.Helper()
	ctx, cancel := detached(b)
	f.cancel = cancel
	f.planes.Store(&planes)
	f.there.Store(arrivals.New(0, 2*len(f.proxies), ""))
	catalog := adsclient.NewCatalog()
	for _, p := range f.proxies {
		p.state = adsclient.NewState(catalog)
		f.running.Go(func() { p.keep(ctx, p.stream) })
		f.running.Go(func() { p.keep(ctx, p.session) })
	}
	b.Cleanup(f.close)
	times, err := f.there.Load().Wait(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return times
}

func (f *fleet) close() {
	f.cancel()
	f.running.Wait()
}

// leave makes the proxies of a replica reconnect to the other replicas after it ends.
func (f *fleet) leave(lost *plane) *arrivals.Arrivals {
	var others []*plane
	back := arrivals.New(0, 2*len(f.proxies), "")
	for _, p := range *f.planes.Load() {
		if p != lost {
			others = append(others, p)
		}
	}
	for _, p := range f.proxies {
		if p.streamAt() != lost {
			back.Arrive(p.index)
		}
		if p.sessionAt() != lost {
			back.Arrive(len(f.proxies) + p.index)
		}
	}
	f.there.Store(back)
	f.planes.Store(&others)
	return back
}

// streamAt is the replica of the current or next ADS stream. With two replicas, half of the proxies have their
// session and stream on different replicas.
func (p *proxy) streamAt() *plane {
	planes := *p.planes.Load()
	return planes[p.index%len(planes)]
}

func (p *proxy) sessionAt() *plane {
	planes := *p.planes.Load()
	return planes[p.index/2%len(planes)]
}

// keep keeps a proxy connected.
func (p *proxy) keep(ctx context.Context, connect func(context.Context) error) {
	for {
		_ = connect(ctx) // keep retries, and callers bound their waits
		if run.Sleep(ctx, comeBack) != nil {
			return
		}
	}
}

func (p *proxy) stream(ctx context.Context) error {
	return adsclient.Run(ctx, adsclient.Options{Address: p.streamAt().agents, TLS: p.tls(), Node: p.id(), State: p.state, Observer: p})
}

func (p *proxy) session(ctx context.Context) error {
	conn := p.dial(p.sessionAt())
	defer func() { _ = conn.Close() }() // ctx or the stream has ended
	stream, err := agentv1.NewAgentServiceClient(conn).Session(ctx)
	if err != nil {
		return err
	}
	answer := p.hello(false)
	for {
		if answer != nil {
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		if r.GetWelcome() != nil {
			p.there.Load().Arrive(len(p.proxies) + p.index)
		}
		answer = p.answer(r)
	}
}

// Connected implements adsclient.Observer. A proxy with its whole configuration receives nothing at the
// new replica.
func (p *proxy) Connected() {
	if p.state.Settled() {
		p.there.Load().Arrive(p.index)
	}
}

// Resource implements adsclient.Observer.
func (p *proxy) Resource(t resource.Type, name, version []byte) {
	if t == resource.Endpoint && string(name) == p.service {
		change := p.change.Load()
		p.arrived = change.Expects(p.index) && change.Is(version)
	}
}

// Acked implements adsclient.Observer.
func (p *proxy) Acked() {
	if p.arrived {
		p.change.Load().Arrive(p.index)
		p.arrived = false
	}
	if p.state.Settled() {
		p.there.Load().Arrive(p.index)
	}
}

// agreed returns the version of the service's endpoints, if all proxies have the same.
func (f *fleet) agreed() (string, error) {
	first := ""
	for i, p := range f.proxies {
		version := p.state.Contents()[resource.Endpoint][f.service]
		if i == 0 {
			first = version
		}
		if version == "" || version != first {
			return "", fmt.Errorf("%s has version %q of %s, others %q", p.name, version, f.service, first)
		}
	}
	return first, nil
}
