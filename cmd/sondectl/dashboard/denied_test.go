package dashboard

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	adminwatch "github.com/sonde-mesh/sonde/admin/watch"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// checked is a control plane with the real server of Watch, without lists.
type checked struct {
	adminv1.AdminServiceClient
	server *adminwatch.Server
	denies atomic.Bool
	calls  atomic.Int64
}

func newChecked() *checked {
	return &checked{server: adminwatch.New(adminwatch.Options{
		Calls:        func(adminwatch.Calls) adminwatch.Calls { return noCalls{} },
		Ready:        func() error { return nil },
		Unresponsive: func(context.Context) (map[mesh.ID]bool, []string) { return nil, nil },
	})}
}

func (c *checked) Watch(ctx context.Context, r *adminv1.WatchRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[adminv1.WatchResponse], error) {
	c.calls.Add(1)
	p := &pipe{ctx: ctx, messages: make(chan *adminv1.WatchResponse), ended: make(chan error, 1)}
	go func() {
		p.ended <- c.server.Watch(r, p, func(_ context.Context, needs []adminv1.Right) (adminwatch.Caller, error) {
			who := adminwatch.Caller{Name: "operator", Errs: map[adminv1.Right]error{}}
			for _, need := range needs {
				if c.denies.Load() {
					who.Errs[need] = grpcstatus.Errorf(codes.PermissionDenied, "%s is forbidden", need.Resource)
				}
			}
			return who, nil
		})
	}()
	return received{pipe: p}, nil
}

// noCalls has no lists.
type noCalls struct {
	adminv1.UnimplementedAdminServiceServer
}

func (noCalls) Waited() time.Duration { return 0 }

// pipe is the server's end of a call, received the client's.
type pipe struct {
	grpc.ServerStream
	ctx      context.Context //nolint:containedctx // as in the stream
	messages chan *adminv1.WatchResponse
	ended    chan error
}

func (p *pipe) Context() context.Context { return p.ctx }

func (p *pipe) Send(m *adminv1.WatchResponse) error {
	select {
	case p.messages <- m:
		return nil
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}

type received struct {
	grpc.ClientStream
	pipe *pipe
}

func (r received) Recv() (*adminv1.WatchResponse, error) {
	select {
	case m := <-r.pipe.messages:
		return m, nil
	case err := <-r.pipe.ended:
		return nil, err
	case <-r.pipe.ctx.Done():
		return nil, r.pipe.ctx.Err()
	}
}

// A page whose user may read nothing, from the beginning or since a while, says so, and asks the control plane rarely.
func TestNothingMayBeWatched(t *testing.T) {
	for name, allowed := range map[string]time.Duration{"never": 0, "not since a while": time.Minute} {
		t.Run(name, func(t *testing.T) {
			var c *checked
			call := func(ctx context.Context, _ time.Duration, work func(context.Context, adminv1.AdminServiceClient) error) error {
				return work(ctx, c)
			}
			watch(t, call, func(s *source) {
				c = newChecked()
				defer c.server.Stop()
				lookFor(s, allowed)
				c.denies.Store(true)
				lookFor(s, 2*time.Minute)
				sections, _ := s.look()
				for _, p := range parts {
					if section := sections[p.name]; !section.Denied {
						t.Errorf("%s: %+v", p.name, section)
					}
				}
				before := c.calls.Load()
				lookFor(s, 5*time.Minute)
				if n := c.calls.Load() - before; n < 6 || n > 15 {
					t.Errorf("%d calls in five minutes, want about one every %s", n, failedLimit)
				}
			})
		})
	}
}
