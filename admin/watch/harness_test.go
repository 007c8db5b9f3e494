package watch

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fullCalls answers each call with one entry.
type fullCalls struct{}

func (fullCalls) ListMeshes(context.Context, *adminv1.ListMeshesRequest) (*adminv1.ListMeshesResponse, error) {
	return &adminv1.ListMeshesResponse{Meshes: []*adminv1.Mesh{{Name: "default"}}, Tail: &adminv1.Tail{}}, nil
}

func (fullCalls) ListDataplanes(context.Context, *adminv1.ListDataplanesRequest) (*adminv1.ListDataplanesResponse, error) {
	return &adminv1.ListDataplanesResponse{Dataplanes: []*adminv1.Dataplane{{Mesh: "default", Name: "web-1"}}, Tail: &adminv1.Tail{}}, nil
}

func (fullCalls) ListServices(context.Context, *adminv1.ListServicesRequest) (*adminv1.ListServicesResponse, error) {
	return &adminv1.ListServicesResponse{Services: []*adminv1.Service{{Mesh: "default", Name: "web"}}, Tail: &adminv1.Tail{}}, nil
}

func (fullCalls) ListProxies(_ context.Context, r *adminv1.ListProxiesRequest) (*adminv1.ListProxiesResponse, error) {
	p := &adminv1.Proxy{Mesh: "default", Name: "web-1"}
	if r.GetVerdicts() {
		p.Verdicts = &adminv1.Verdicts{}
	}
	return &adminv1.ListProxiesResponse{Proxies: []*adminv1.Proxy{p}, Tail: &adminv1.Tail{}}, nil
}

func (fullCalls) ListRestarts(context.Context, *adminv1.ListRestartsRequest) (*adminv1.ListRestartsResponse, error) {
	return &adminv1.ListRestartsResponse{Restarts: []*adminv1.Restart{{Namespace: "shop", Pod: "web-1", Container: "app"}}, Tail: &adminv1.Tail{}}, nil
}

func (fullCalls) GetHealth(context.Context, *adminv1.GetHealthRequest) (*adminv1.Health, error) {
	return &adminv1.Health{Checks: []*adminv1.HealthCheck{{Name: "synced", Status: adminv1.HealthCheck_OK}}}, nil
}

func (fullCalls) Waited() time.Duration { return 0 }

// plane is a control plane with counted calls.
type plane struct {
	fullCalls
	server  *Server
	running sync.WaitGroup // calls
	// lists and asks count the calls of ListProxies, and the questions to agents.
	lists, asks atomic.Int64
	takes       time.Duration                                  // of ListProxies
	waits       time.Duration                                  // of ListProxies, for other replicas
	long        int                                            // proxies that need a message each, and change; 0: a short one
	change      func(*adminv1.Proxy)                           // of the listed proxy; may be nil
	hang        func() (map[mesh.ID]bool, []string)            // may be nil
	notReady    atomic.Pointer[error]                          // may have nil
	rights      func(adminv1.Right) (caller string, err error) // of all viewers; nil allows all
}

func (p *plane) ListProxies(ctx context.Context, r *adminv1.ListProxiesRequest) (*adminv1.ListProxiesResponse, error) {
	p.lists.Add(1)
	time.Sleep(p.takes + p.waits)
	l, err := p.fullCalls.ListProxies(ctx, r)
	for i := range p.long {
		l.Proxies = append(l.Proxies, &adminv1.Proxy{Mesh: "default", Name: fmt.Sprint("long-", i), Drain: fmt.Sprint(time.Now()) + strings.Repeat("x", maxPartBytes)})
	}
	if p.change != nil {
		p.change(l.GetProxies()[0])
	}
	return l, err
}

func (p *plane) Waited() time.Duration { return p.waits }

// start makes the Server. It is for a bubble of synctest, at whose end all calls must have ended.
func start(t *testing.T, p *plane) *plane {
	t.Helper()
	p.server = New(Options{
		Calls: func(Calls) Calls { return p },
		Ready: func() error {
			if err := p.notReady.Load(); err != nil {
				return *err
			}
			return nil
		},
		Unresponsive: func(context.Context) (map[mesh.ID]bool, []string) {
			p.asks.Add(1)
			if p.hang == nil {
				return nil, nil
			}
			return p.hang()
		},
	})
	t.Cleanup(func() {
		p.server.Stop()
		p.running.Wait()
		p.server.Wait()
	})
	return p
}

// caller is the client's end of a call.
type caller struct {
	grpc.ServerStream
	ctx  context.Context //nolint:containedctx // as in the stream
	took chan *adminv1.WatchResponse
	end  func()
	// err is the status of the call, after ended is closed.
	err   error
	ended chan struct{}
}

func (c *caller) Context() context.Context { return c.ctx }

// Send implements adminv1.AdminService_WatchServer: it waits until the caller reads, or the call has ended.
func (c *caller) Send(m *adminv1.WatchResponse) error {
	select {
	case c.took <- m:
		return nil
	case <-c.ctx.Done():
		return status.FromContextError(c.ctx.Err()).Err()
	}
}

// call begins a call, which ends with the test.
func (p *plane) call(t *testing.T, sections ...section) *caller {
	t.Helper()
	return p.callFrom(t, net.IPv4(127, 0, 0, 1), sections...)
}

// callFrom is call from an address.
func (p *plane) callFrom(t *testing.T, address net.IP, sections ...section) *caller {
	t.Helper()
	c := &caller{took: make(chan *adminv1.WatchResponse), ended: make(chan struct{})}
	c.ctx, c.end = context.WithCancel(peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: address}}))
	rights := func(_ context.Context, needs []adminv1.Right) (who Caller, err error) {
		who = Caller{Name: "admin", Shared: true, Errs: map[adminv1.Right]error{}}
		if p.rights == nil {
			return who, nil
		}
		for _, need := range needs {
			name, err := p.rights(need)
			if status.Code(err) == codes.Unauthenticated {
				return who, err
			}
			who.Name, who.Shared, who.Errs[need] = name, false, err
		}
		return who, nil
	}
	p.running.Go(func() {
		defer close(c.ended)
		c.err = p.server.Watch(&adminv1.WatchRequest{Sections: sections}, c, rights)
		c.end() // as gRPC does
	})
	return c
}

// read returns what is sent until the end of a reading, or of the call.
func (c *caller) read() (all []*adminv1.WatchResponse) {
	for {
		select {
		case m := <-c.took:
			if m.GetReading() != nil {
				return all
			}
			all = append(all, m)
		case <-c.ended:
			return all
		}
	}
}

// follow reads until the call ends.
func (c *caller) follow() {
	for {
		select {
		case <-c.took:
		case <-c.ended:
			return
		}
	}
}
