package peers

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/internal/testing/secrettest"
	"github.com/sonde-mesh/sonde/replicas"
)

// replica is a running replica with its state.
type replica struct {
	*replicas.Peers
	name, address string
	heard         chan struct{} // has a value after a received message
	stop          func()

	mu      sync.Mutex
	proxies map[mesh.ID]*peerv1.Proxy
}

// newCertificate returns the serving CA that replicas share.
func newCertificate(b *testing.B) *serving.Certificate {
	b.Helper()
	certificate, err := serving.Open(b.Context(), serving.Options{Storage: &secrettest.Memory{}})
	if err != nil {
		b.Fatal(err)
	}
	return certificate
}

func start(b *testing.B, certificate *serving.Certificate, name string) *replica {
	b.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	r := &replica{name: name, address: listener.Addr().String(), heard: make(chan struct{}, 1), proxies: map[mesh.ID]*peerv1.Proxy{}}
	own := certificate.Replica(mesh.DefaultTrustDomain, name)
	r.Peers, err = replicas.New(replicas.Options{Name: name, Server: own.Server(), Client: own.Client(), NameOf: own.NameOf})
	if err != nil {
		b.Fatal(err)
	}
	r.Connect(local{replica: r})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	running.Go(func() { _ = r.Serve(ctx, listener) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	b.Cleanup(r.stop)
	return r
}

// knows replaces the replica's state of a proxy.
func (r *replica) knows(p *peerv1.Proxy) {
	r.mu.Lock()
	r.proxies[p.GetId()] = p
	r.mu.Unlock()
	r.Changed(p.GetId())
}

// local is the local state of a replica. Other methods are not called.
type local struct {
	replicas.Local
	*replica
}

func (l local) Proxies() []mesh.ID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.proxies))
}

func (l local) Proxy(id mesh.ID) *peerv1.Proxy {
	l.mu.Lock()
	defer l.mu.Unlock()
	return proto.CloneOf(l.proxies[id])
}

func (local) Replica() *peerv1.Replica { return &peerv1.Replica{} }
func (local) HeardReplica()            {}
func (l local) Merged(id mesh.ID)      { l.Taken(id) }

func (l local) Heard(mesh.ID) {
	select {
	case l.heard <- struct{}{}:
	default: // the last value has not been read yet
	}
}
