package xds

import (
	"context"
	"crypto/tls"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/test/adsclient"
	"github.com/sonde-mesh/sonde/test/bench/arrivals"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// clientGC is the clients' GOGC: they use more memory, to leave CPU time to the servers.
const clientGC = 400

// comeBack is the delay before a proxy reconnects.
const comeBack = 100 * time.Millisecond

// slowRate is how many bytes per second a slow proxy reads.
const slowRate = 1 << 10

// fleet is all proxies.
type fleet struct {
	address string
	proxies []*proxy
	changed map[string]*atomic.Pointer[arrivals.Arrivals] // by name of the endpoints

	settled *arrivals.Arrivals // proxies with their whole configuration
	linked  *arrivals.Arrivals // proxies that have sent their first requests
	cancel  context.CancelFunc
	running sync.WaitGroup

	received, responses, resources atomic.Int64
	// refused counts connections that failed at once and were retried; lost counts connections that had worked. A
	// client completes the handshake before the server: "bad record MAC" is the alert of a server that gave up in
	// between, and then miscounts its records.
	refused, lost atomic.Int64
	reason        atomic.Pointer[error] // of the last refused or lost connection
}

// proxy is one client, and the Observer of its own stream.
type proxy struct {
	*fleet
	index   int
	tls     *tls.Config
	state   *adsclient.State
	odd     bool                 // the benchmark does not wait for it
	served  bool                 // has received resources on this stream
	arrived []*arrivals.Arrivals // changes in the current response
}

var _ adsclient.Observer = (*proxy)(nil)

// newFleet creates the proxies of a topology, with their keys and certificates.
func newFleet(b *testing.B, w topology, id *sondecp.Identity, address string) *fleet {
	b.Helper()
	before := debug.SetGCPercent(clientGC)
	f := &fleet{address: address, changed: map[string]*atomic.Pointer[arrivals.Arrivals]{}}
	for s := range w.services + 1 {
		slot := &atomic.Pointer[arrivals.Arrivals]{}
		slot.Store(arrivals.New(0, 0, ""))
		f.changed[w.serviceName(s)] = slot
	}
	for i := range w.proxies {
		config, err := id.ClientTLS(subject(i))
		if err != nil {
			b.Fatal(err)
		}
		f.proxies = append(f.proxies, &proxy{fleet: f, index: i, tls: config})
	}
	f.forget()
	b.Cleanup(func() {
		f.close()
		debug.SetGCPercent(before)
	})
	return f
}

// open connects all proxies at once.
func (f *fleet) open() {
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	f.settled, f.linked = arrivals.New(0, len(f.proxies), ""), arrivals.New(0, len(f.proxies), "")
	for _, p := range f.proxies {
		p.arrived = nil
		f.running.Go(func() { p.live(ctx, adsclient.Options{}) })
	}
}

// forget disconnects all proxies and clears their state.
func (f *fleet) forget() {
	f.close()
	catalog := adsclient.NewCatalog()
	for _, p := range f.proxies {
		p.state = adsclient.NewState(catalog)
	}
}

// openOdd opens a second stream for two proxies: one reads slowly, the other never sends an ACK.
func (f *fleet) openOdd() {
	ctx, cancel := context.WithCancel(context.Background())
	others := f.cancel
	f.cancel = func() { others(); cancel() }
	for i, o := range []adsclient.Options{{BytesPerSecond: slowRate}, {Silent: true}} {
		good := f.proxies[i]
		p := &proxy{fleet: f, index: i, tls: good.tls, state: adsclient.NewState(adsclient.NewCatalog()), odd: true}
		f.running.Go(func() { p.live(ctx, o) })
	}
}

// close disconnects all proxies, which keep their state.
func (f *fleet) close() {
	if f.cancel != nil {
		f.cancel()
		f.running.Wait()
		f.cancel = nil
	}
}

// live keeps a proxy connected.
func (p *proxy) live(ctx context.Context, o adsclient.Options) {
	o.Address, o.TLS, o.Node, o.State, o.Observer, o.Received = p.address, p.tls, proxyID(p.index), p.state, p, &p.received
	for {
		p.served = false
		err := adsclient.Run(ctx, o)
		if ctx.Err() != nil {
			return
		}
		p.reason.Store(&err)
		if p.served {
			p.lost.Add(1)
		} else {
			p.refused.Add(1)
		}
		if run.Sleep(ctx, comeBack) != nil {
			return
		}
	}
}

// Connected implements adsclient.Observer.
func (p *proxy) Connected() {
	if !p.odd {
		p.linked.Arrive(p.index)
	}
}

// Resource implements adsclient.Observer.
func (p *proxy) Resource(t resource.Type, name, version []byte) {
	p.served = true
	p.resources.Add(1)
	if t != resource.Endpoint || p.odd {
		return
	}
	if change := p.changed[string(name)].Load(); change.Expects(p.index) && change.Is(version) {
		p.arrived = append(p.arrived, change)
	}
}

// Acked implements adsclient.Observer.
func (p *proxy) Acked() {
	p.responses.Add(1)
	for _, change := range p.arrived {
		change.Arrive(p.index)
	}
	p.arrived = p.arrived[:0]
	if !p.odd && p.settled.Expects(p.index) && p.state.Settled() {
		p.settled.Arrive(p.index)
	}
}

// check returns an error unless the proxies have the resources of the topology: a subject that sends
// fewer would be faster.
func (f *fleet) check(w topology) error {
	has := map[resource.Type]int{}
	for _, p := range f.proxies {
		for t, n := range p.state.Count() {
			has[t] += n
		}
	}
	least := w.proxies * w.services
	for _, t := range resource.Types() {
		if has[t] < least {
			return fmt.Errorf("the proxies have %d resources of type %s, want %d at least", has[t], t.Short(), least)
		}
	}
	if few := endpointsPerService; has[resource.Endpoint] > least+few {
		return fmt.Errorf("the proxies have %d assignments, want %d at most", has[resource.Endpoint], least+few)
	}
	return nil
}

// forgetCounts restarts the counters of report.
func (f *fleet) forgetCounts() {
	for _, n := range []*atomic.Int64{&f.received, &f.responses, &f.resources, &f.refused, &f.lost} {
		n.Store(0)
	}
}

// report reports the data that all proxies received together.
func (f *fleet) report(b *testing.B) {
	b.Helper()
	per := func(n *atomic.Int64) float64 { return float64(n.Load()) / float64(b.N) }
	b.ReportMetric(per(&f.received), "received-bytes/op")
	b.ReportMetric(per(&f.responses), "responses/op")
	b.ReportMetric(per(&f.resources), "resources/op")
	b.ReportMetric(per(&f.refused), "refused/op")
	b.ReportMetric(per(&f.lost), "lost/op")
}

// trouble describes the last stream that ended, if any.
func (f *fleet) trouble() string {
	if err := f.reason.Load(); err != nil {
		return fmt.Sprintf("%d connections were refused, %d streams lost, the last: %v", f.refused.Load(), f.lost.Load(), *err)
	}
	return "no stream ended"
}
