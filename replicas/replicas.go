// Package replicas connects the replicas of the control plane. Each reports its own state of proxies to the others and
// keeps what they report, even after one disconnects. So a question about a proxy gets the same answer wherever its
// agent and Envoy are connected.
package replicas

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Local is the state of this replica. Its methods are called from any goroutine, and must not call Peers, except Heard.
type Local interface {
	// Proxies returns the proxies that this replica has state about.
	Proxies() []mesh.ID
	// Proxy returns the state of a proxy, nil without any.
	Proxy(id mesh.ID) *peerv1.Proxy
	// Replica returns what it has loaded.
	Replica() *peerv1.Replica
	// Heard is called after another replica's report about a proxy has changed. HeardReplica is called after a replica
	// has loaded something else, or has disconnected.
	Heard(id mesh.ID)
	HeardReplica()
	// Merged is called after Heard, for a proxy about which a replica waits for Taken.
	Merged(id mesh.ID)
	// Query sends a query to the Envoy of a proxy that has a session here. Errors are gRPC statuses.
	Query(ctx context.Context, proxy mesh.ID, view mesh.EnvoyView, take func([]byte) error) error
	// CheckDuplicate returns why another process of a proxy that has a session here is rejected, "" if it is not.
	CheckDuplicate(ctx context.Context, proxy mesh.ID, process, address string) (refusal string)
	// AskPlaintext asks the agents of these meshes that have a session here for their counts, and returns id, instance
	// and plaintext of the proxies that answered.
	AskPlaintext(ctx context.Context, meshes []string) []*peerv1.Proxy
	// ListUnresponsive pings the agents of a mesh ("" for all) that have a session here, and returns the proxies that
	// do not answer.
	ListUnresponsive(ctx context.Context, meshName string) []mesh.ID
	// Streams returns the ADS streams here.
	Streams() map[mesh.ID][]*adminv1.Stream
	// Decisions returns this replica's last restart decisions, nil if it does not lead. The result must not be changed.
	Decisions(of *peerv1.ListDecisionsRequest) *peerv1.ListDecisionsPart
}

// Options of Peers. Dial, Registerer, Logger, Now and Connections are optional.
type Options struct {
	// Name of this replica, as in its certificate, and version of its program.
	Name, Version string
	// Server and Client have this replica's certificate, and accept only certificates of replicas.
	Server, Client *tls.Config
	// NameOf returns the name in the certificate of a replica.
	NameOf func(tls.ConnectionState) (string, error)
	// Dial connects to host:port. Default: by TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Connections limits all connections, also of clients that are not replicas. Default MaxConnections.
	Connections int
	Registerer  prometheus.Registerer
	Logger      *slog.Logger
	Now         func() time.Time
}

// Peers are the other replicas. A nil *Peers is valid and has no peers.
type Peers struct {
	o         Options
	local     Local
	freeze    Freeze    // nil if not connected
	revisions Revisions // nil if not connected
	hello     *peerv1.Hello
	metrics   *metrics
	wake      run.Signal // set when followed has changed

	mu sync.Mutex
	// followed are the addresses of the existing replicas, by name; nil before the first Follow. senders are the
	// running senders.
	followed map[string]string
	senders  map[string]*sender
	// remotes has the reported state of other replicas, by name.
	remotes map[string]*remote
	// changes counts the calls of Changed.
	changes uint64
	// behind is what this replica has not read yet; newest is the revision that it reports to the others.
	behind behind
	newest uint64
}

// New returns Peers without replicas. Call Connect before Follow, Run and Serve.
func New(o Options) (*Peers, error) {
	if o.Name == "" || o.Server == nil || o.Client == nil || o.NameOf == nil {
		return nil, errors.New("replicas: Name, Server, Client and NameOf are required")
	}
	o.Logger, o.Connections = cmp.Or(o.Logger, slog.New(slog.DiscardHandler)), cmp.Or(o.Connections, MaxConnections)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	p := &Peers{o: o, wake: run.NewSignal(), senders: map[string]*sender{}, remotes: map[string]*remote{}}
	p.hello = &peerv1.Hello{Replica: o.Name, Process: rand.Text(), Started: timestamppb.New(o.Now()), Version: o.Version}
	var err error
	p.metrics, err = newMetrics(p, o.Registerer)
	return p, err
}

// Connect sets the state of this replica.
func (p *Peers) Connect(l Local) {
	if p != nil {
		p.local = l
	}
}

// Follow replaces the set of replicas: addresses (host:port) by name. This replica itself is skipped.
func (p *Peers) Follow(addresses map[string]string) {
	addresses = maps.Clone(addresses)
	delete(addresses, p.o.Name)
	p.mu.Lock()
	p.followed = addresses
	p.mu.Unlock()
	p.wake.Set()
	p.local.HeardReplica()
}

// Run reports this replica's state to the others until ctx ends, and then returns nil.
func (p *Peers) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		for _, s := range p.takeFollowed() {
			running.Go(func() { p.tell(s.ctx(ctx), s) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		}
	}
}

// takeFollowed ends senders of removed replicas, and returns senders to start.
func (p *Peers) takeFollowed() []*sender {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, s := range p.senders {
		if p.followed[name] != s.address {
			s.end()
			delete(p.senders, name)
		}
	}
	var started []*sender
	for name, address := range p.followed {
		if p.senders[name] == nil {
			s := newSender(name, address)
			p.senders[name] = s
			started = append(started, s)
		}
	}
	return started
}

// Changed announces that this replica's state of a proxy has changed. It returns at once.
func (p *Peers) Changed(id mesh.ID) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changes++
	for _, s := range p.senders {
		s.change(id, p.o.Now())
		s.wake.Set()
	}
}

// ChangedReplica announces that this replica has loaded something else.
func (p *Peers) ChangedReplica() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.senders {
		s.replicaDirty = true
		s.wake.Set()
	}
}

// Behind reports whether a connected replica has not yet sent a change of a proxy to its Envoys.
func (p *Peers) Behind(id mesh.ID) bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, s := range p.senders {
		if h := p.remotes[name]; h != nil && h.lost.IsZero() && h.revision.GetStale() {
			continue // none of its Envoys waits for the change
		}
		if s.behind(id, p.o.Now()) {
			return true
		}
	}
	return false
}

// Missing returns the sorted names of the replicas that exist but are disconnected, so that their answers are missing.
func (p *Peers) Missing() []string {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var missing []string
	for name := range p.followed {
		if h := p.remotes[name]; h == nil || !h.complete || !h.lost.IsZero() {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	return missing
}

// Check returns an error that names the replicas that are disconnected in either direction.
func (p *Peers) Check() error {
	var errs []error
	for _, name := range p.Missing() {
		errs = append(errs, fmt.Errorf("replica %s is disconnected", name))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(p.senders)) {
		if err := p.senders[name].err; err != nil {
			errs = append(errs, fmt.Errorf("connect to replica %s at %s: %w", name, p.senders[name].address, err))
		}
	}
	return errors.Join(errs...)
}

// startTime bounds how long a starting replica waits for the state of others.
const startTime = 5 * time.Second

// AwaitFirst waits until all replicas have reported their state, for at most startTime. The error is the error of ctx.
func (p *Peers) AwaitFirst(ctx context.Context) error {
	late := time.NewTimer(startTime)
	defer late.Stop()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		p.mu.Lock()
		known := p.followed != nil
		p.mu.Unlock()
		if known && len(p.Missing()) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late.C:
			p.o.Logger.WarnContext(ctx,
				"replicas have not reported their state, their agents count as not joined until they connect here",
				"replicas", p.Missing())
			return nil
		case <-poll.C:
		}
	}
}
