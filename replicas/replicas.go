// Package replicas connects the replicas of the control plane. Each tells each other what it knows of proxies by itself, and keeps what the others
// have said, also of one that is lost. So an answer about a proxy is the same wherever its agent and its Envoy are connected.
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

// Local is what this replica knows by itself. Its methods are called from any goroutine, and must not call those of Peers, but for Heard.
type Local interface {
	// Proxies returns those of which this replica knows something.
	Proxies() []mesh.ID
	// Proxy returns what it knows of one, nil if that is nothing.
	Proxy(id mesh.ID) *peerv1.Proxy
	// Replica returns what it has loaded.
	Replica() *peerv1.Replica
	// Heard is called after others have said something of a proxy, HeardReplica after they have said what they have loaded, or were lost.
	Heard(id mesh.ID)
	HeardReplica()
	// Merged is called after Heard for a proxy of which a replica waits for Taken.
	Merged(id mesh.ID)
	// Query asks an Envoy whose proxy has a session here. Errors are gRPC statuses.
	Query(ctx context.Context, proxy mesh.ID, view mesh.EnvoyView, take func([]byte) error) error
	// CheckDuplicate returns why another process of a proxy that has a session here is refused, "" if it is not.
	CheckDuplicate(ctx context.Context, proxy mesh.ID, process, address string) (refusal string)
	// AskPlaintext asks the agents of these meshes with a session here for their counts, and returns id, instance and plaintext of the proxies that
	// answered.
	AskPlaintext(ctx context.Context, meshes []string) []*peerv1.Proxy
	// ListUnresponsive asks the agents of a mesh with a session here, of all meshes if that is "", and returns the proxies of those that do not answer.
	ListUnresponsive(ctx context.Context, meshName string) []mesh.ID
	// Streams returns the ADS streams here.
	Streams() map[mesh.ID][]*adminv1.Stream
	// Decisions returns what this replica has decided last about restarts, nil if it does not lead. It must not be changed.
	Decisions(of *peerv1.ListDecisionsRequest) *peerv1.ListDecisionsPart
}

// Options of Peers. All are required but Dial, Registerer, Logger and Now.
type Options struct {
	// Name of this replica, as it is in its certificate, and the version of its program.
	Name, Version string
	// Server and Client have the certificate of this replica, and accept only those of replicas.
	Server, Client *tls.Config
	// NameOf returns the name in the certificate of a replica.
	NameOf func(tls.ConnectionState) (string, error)
	// Dial connects to host:port. Default: by TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Connections is how many replicas and strangers may have at once. Default MaxConnections.
	Connections int
	Registerer  prometheus.Registerer
	Logger      *slog.Logger
	Now         func() time.Time
}

// Peers are the other replicas. Those that are nil are none.
type Peers struct {
	o         Options
	local     Local
	freeze    Freeze    // nil for none
	revisions Revisions // nil for none
	hello     *peerv1.Hello
	metrics   *metrics
	wake      run.Signal // sent to when followed has changed

	mu sync.Mutex
	// followed are the addresses of the replicas that there are, by name; nil before the first Follow. senders are those that have been started.
	followed map[string]string
	senders  map[string]*sender
	// heard has what others have said, by the name of the replica.
	heard map[string]*heard
	// changes counts the calls of Changed.
	changes uint64
	// behind is what this replica lacks, and newest the revision that it tells the others.
	behind behind
	newest uint64
}

// New returns Peers that know no replica yet. Connect has to be called before Follow, Run and Serve.
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
	p := &Peers{o: o, wake: run.NewSignal(), senders: map[string]*sender{}, heard: map[string]*heard{}}
	p.hello = &peerv1.Hello{Replica: o.Name, Process: rand.Text(), Started: timestamppb.New(o.Now()), Version: o.Version}
	var err error
	p.metrics, err = newMetrics(p, o.Registerer)
	return p, err
}

// Connect sets what this replica knows by itself.
func (p *Peers) Connect(l Local) {
	if p != nil {
		p.local = l
	}
}

// Follow replaces which replicas there are: their addresses, host:port, by name. This one itself is left out.
func (p *Peers) Follow(addresses map[string]string) {
	addresses = maps.Clone(addresses)
	delete(addresses, p.o.Name)
	p.mu.Lock()
	p.followed = addresses
	p.mu.Unlock()
	p.wake.Set()
	p.local.HeardReplica()
}

// Run tells the others what this replica knows until ctx ends, and then returns nil.
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

// takeFollowed ends senders to replicas that are gone, and returns those that are to start.
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

// Changed tells that what this replica knows of a proxy has changed. It returns at once.
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

// ChangedReplica tells that this replica has loaded something else.
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

// Behind reports whether a replica that is connected does not have on its way to Envoys what has changed of a proxy.
func (p *Peers) Behind(id mesh.ID) bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, s := range p.senders {
		if h := p.heard[name]; h != nil && h.lost.IsZero() && h.revision.GetStale() {
			continue // no Envoy waits for it
		}
		if s.behind(id, p.o.Now()) {
			return true
		}
	}
	return false
}

// Missing returns the names of the replicas whose answers are not known here: there they are, and this one does not hear them. It is sorted.
func (p *Peers) Missing() []string {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var missing []string
	for name := range p.followed {
		if h := p.heard[name]; h == nil || !h.complete || !h.lost.IsZero() {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	return missing
}

// Check returns an error that names the replicas that are not heard, or do not hear this one.
func (p *Peers) Check() error {
	var errs []error
	for _, name := range p.Missing() {
		errs = append(errs, fmt.Errorf("replica %s is not heard", name))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(p.senders)) {
		if err := p.senders[name].err; err != nil {
			errs = append(errs, fmt.Errorf("replica %s is not reached at %s: %w", name, p.senders[name].address, err))
		}
	}
	return errors.Join(errs...)
}

// startTime is how long a replica that starts waits for what others know.
const startTime = 5 * time.Second

// AwaitFirst waits until the replicas that there are have said what they know, at most for startTime. The error is that of ctx.
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
			p.o.Logger.WarnContext(ctx, "replicas have not said what they know: their agents count as not joined until they speak here", "replicas", p.Missing())
			return nil
		case <-poll.C:
		}
	}
}
