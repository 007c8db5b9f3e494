package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/dpagent/retry"
	"github.com/sonde-mesh/sonde/test/adsclient"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// roleClient is the process that holds the proxies.
const roleClient = "client"

// order tells the client process what to do. Orders and answers are JSON, one object per line.
type order struct {
	Do string
	// Address of the server, and the number of proxies that connect to it.
	Address string
	Proxies int
	// Name and Version of endpoints that the proxies First to Last (exclusive) are about to get.
	Name, Version string
	First, Last   int
}

// What an order may say.
const (
	doOpen    = "open"    // connect all at once
	doClose   = "close"   // disconnect all; the proxies keep what they have
	doSettled = "settled" // wait until all have everything; the answer is a landing
	doLinked  = "linked"  // wait until all have sent their first requests; the answer is a landing
	doExpect  = "expect"  // note when a change arrives
	doAwait   = "await"   // wait for all expected changes; the answer is their arrivals
	doOdd     = "odd"     // connect two more: one reads slowly, one never answers
	doJoin    = "join"    // have all agents join with tokens; the answer is a landing
	doStats   = "stats"
)

// clientGC is the clients' GOGC: they use more memory to leave CPU time to the servers.
const clientGC = 400

// waitAtMost is how long the client process waits for anything.
const waitAtMost = 2 * time.Minute

// slowRate is how many bytes per second the slow client reads.
const slowRate = 1 << 10

// now reads the clock that all processes of a machine share, in nanoseconds.
func now() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // the kernel has this clock
	return t.Nano()
}

// fleet is all proxies.
type fleet struct {
	identity  *sondecp.Identity
	catalog   *adsclient.Catalog
	received  atomic.Int64
	responses atomic.Int64
	resources atomic.Int64
	refused   atomic.Int64
	lost      atomic.Int64
	reasons   reasons

	proxies []*proxy // all but the odd ones
	cancel  context.CancelFunc
	running sync.WaitGroup
	landing meeting // settled
	linking meeting // connected
	watched atomic.Pointer[map[string]*atomic.Pointer[expectation]]
	pending []*expectation
}

// proxy is one client. It is the Observer of its own stream.
type proxy struct {
	fleet   *fleet
	index   int
	tls     *tls.Config
	state   *adsclient.State
	odd     bool
	linked  bool // has connected since the order to open
	served  bool // has got something on this stream
	settled bool
	arrived []*expectation // expected versions in the current response
}

func serveClients(ctx context.Context, id *sondecp.Identity, _ roleOptions) error {
	debug.SetGCPercent(clientGC)
	f := &fleet{identity: id, catalog: adsclient.NewCatalog()}
	f.watched.Store(&map[string]*atomic.Pointer[expectation]{})
	lines := bufio.NewScanner(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return err
		}
		answer, err := f.obey(ctx, o)
		if err != nil {
			return fmt.Errorf("%s: %w", o.Do, err)
		}
		if err := answers.Encode(answer); err != nil {
			return err
		}
	}
	f.close()
	return lines.Err()
}

func (f *fleet) obey(ctx context.Context, o order) (any, error) {
	switch o.Do {
	case doOpen:
		return struct{}{}, f.open(ctx, o)
	case doClose:
		f.close()
		return struct{}{}, nil
	case doSettled:
		return f.landing.wait(f)
	case doLinked:
		return f.linking.wait(f)
	case doExpect:
		f.expect(o)
		return struct{}{}, nil
	case doAwait:
		return f.await()
	case doOdd:
		return struct{}{}, f.odd(ctx, o)
	case doJoin:
		return f.join(ctx, o)
	case doStats:
		return f.stats(), nil
	}
	return nil, errors.New("unknown order")
}

// stats are counts since the start of the process, except Has, which is what the proxies have now.
type stats struct {
	Bytes, Responses, Resources int64
	// Refused connections never worked and were tried again; Lost ones had worked. A client completes the handshake before the
	// server: "bad record MAC" is the alert of a server that gave up in between, and then miscounts its records.
	Refused, Lost int64
	// Reasons of both.
	Reasons map[string]int
	Has     map[resource.Type]int
}

func (f *fleet) stats() stats {
	s := stats{
		Bytes: f.received.Load(), Responses: f.responses.Load(), Resources: f.resources.Load(),
		Refused: f.refused.Load(), Lost: f.lost.Load(), Reasons: f.reasons.all(), Has: map[resource.Type]int{},
	}
	for _, p := range f.proxies {
		for t, n := range p.state.Count() {
			s.Has[t] += n
		}
	}
	return s
}

// reasons count errors, without the addresses in them.
type reasons struct {
	mu     sync.Mutex
	counts map[string]int
}

var endpointText = regexp.MustCompile(`[0-9.]+:[0-9]+`)

func (r *reasons) add(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = map[string]int{}
	}
	r.counts[endpointText.ReplaceAllString(text, "*")]++
}

func (r *reasons) all() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.counts)
}

func (f *fleet) newProxy(i int) (*proxy, error) {
	config, err := f.identity.ClientTLS(subject(i))
	return &proxy{fleet: f, index: i, state: adsclient.NewState(f.catalog), tls: config}, err
}

// open connects all proxies at once. Their keys and certificates are made in advance.
func (f *fleet) open(ctx context.Context, o order) error {
	f.close()
	for i := len(f.proxies); i < o.Proxies; i++ {
		p, err := f.newProxy(i)
		if err != nil {
			return err
		}
		f.proxies = append(f.proxies, p)
	}
	f.landing.begin(o.Proxies)
	f.linking.begin(o.Proxies)
	ctx, f.cancel = context.WithCancel(ctx)
	for _, p := range f.proxies {
		p.linked, p.settled, p.arrived = false, false, nil
		f.running.Go(func() { p.live(ctx, adsclient.Options{Address: o.Address}) })
	}
	return nil
}

// odd opens two more streams for proxies that have a good one: one reads slowly, the other never answers.
func (f *fleet) odd(ctx context.Context, o order) error {
	ctx, cancel := context.WithCancel(ctx)
	before := f.cancel
	f.cancel = func() { before(); cancel() }
	for i, more := range []adsclient.Options{{BytesPerSecond: slowRate}, {Silent: true}} {
		p, err := f.newProxy(i)
		if err != nil {
			return err
		}
		p.odd = true
		more.Address = o.Address
		f.running.Go(func() { p.live(ctx, more) })
	}
	return nil
}

func (f *fleet) close() {
	if f.cancel != nil {
		f.cancel()
		f.running.Wait()
		f.cancel = nil
	}
}

// comeBack is how long a refused proxy waits before it connects again.
const comeBack = 100 * time.Millisecond

// live keeps a proxy connected.
func (p *proxy) live(ctx context.Context, o adsclient.Options) {
	o.TLS, o.Node, o.State, o.Observer, o.Received = p.tls, proxyID(p.index), p.state, p, &p.fleet.received
	for {
		p.served = false
		err := adsclient.Run(ctx, o)
		if ctx.Err() != nil {
			return
		}
		if p.served {
			p.fleet.lost.Add(1)
			p.fleet.reasons.add("lost: " + err.Error())
		} else {
			p.fleet.refused.Add(1)
			p.fleet.reasons.add("refused: " + err.Error())
		}
		if retry.Wait(ctx, comeBack) != nil {
			return
		}
	}
}

// Connected implements adsclient.Observer.
func (p *proxy) Connected() {
	if !p.odd && !p.linked {
		p.linked = true
		p.fleet.linking.arrive()
	}
}

// Resource implements adsclient.Observer.
func (p *proxy) Resource(t resource.Type, name, version []byte) {
	p.served = true
	p.fleet.resources.Add(1)
	if t != resource.Endpoint || p.odd {
		return
	}
	if slot := (*p.fleet.watched.Load())[string(name)]; slot != nil {
		if e := slot.Load(); e.is(version) && e.first <= p.index && p.index < e.last {
			e.seen()
			p.arrived = append(p.arrived, e)
		}
	}
}

// Acked implements adsclient.Observer.
func (p *proxy) Acked() {
	p.fleet.responses.Add(1)
	for _, e := range p.arrived {
		e.arrive(p.index)
	}
	p.arrived = p.arrived[:0]
	if !p.settled && !p.odd && p.state.Settled() {
		p.settled = true
		p.fleet.landing.arrive()
	}
}

// meeting waits until each proxy has reached some point.
type meeting struct {
	mu      sync.Mutex
	expects int
	began   int64
	times   []int64
	done    chan struct{}
}

func (m *meeting) begin(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expects, m.began, m.times, m.done = n, now(), nil, make(chan struct{})
}

func (m *meeting) arrive() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.times = append(m.times, now()); len(m.times) == m.expects {
		close(m.done)
	}
}

// landing is how long the proxies took since the order to connect, in seconds.
type landing struct{ P50, P99, Last float64 }

func (m *meeting) wait(f *fleet) (landing, error) {
	select {
	case <-m.done:
	case <-time.After(waitAtMost):
		m.mu.Lock()
		defer m.mu.Unlock()
		s := f.stats()
		return landing{}, fmt.Errorf("%d of %d proxies within %s; %v",
			len(m.times), m.expects, waitAtMost, s.Reasons)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	slices.Sort(m.times)
	since := func(p float64) float64 { return float64(quantile(m.times, p)-m.began) / 1e9 }
	return landing{P50: since(0.5), P99: since(0.99), Last: since(1)}, nil
}

// quantile of a sorted list, 0 if it is empty.
func quantile[T cmp.Ordered](sorted []T, p float64) T {
	if len(sorted) == 0 {
		var none T
		return none
	}
	return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)]
}
