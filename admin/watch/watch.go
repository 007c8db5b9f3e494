// Package watch answers the call Watch of the admin API: it sends lists and their changes. The lists are read once for
// all viewers, and not at all without one.
package watch

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/grpcconn"
)

const (
	// sendTimeout is how long a viewer may take to read a message, updateTimeout all messages of a reading. Later messages
	// wait meanwhile, so that it is behind by at most one reading.
	sendTimeout   = 10 * time.Second
	updateTimeout = 30 * time.Second
)

var (
	errStopping = status.Error(codes.Unavailable, "the control plane is stopping")
	errSlow     = status.Errorf(codes.Aborted, "the caller has not read for %s", sendTimeout)
	errLong     = status.Errorf(codes.Aborted, "the caller has not read a whole reading within %s", updateTimeout)
)

// Options of a Server. All are required.
type Options struct {
	// Calls returns what answers the calls of one reading. The Server keeps and changes the responses, so each call must
	// return a new one. Lists of objects are called by one goroutine. before answered the previous reading, and may be
	// nil.
	Calls func(before Calls) Calls
	// Ready returns why objects cannot be listed yet.
	Ready func() error
	// Unresponsive asks all agents. It returns the proxies whose agents did not answer in time, and the names of the
	// replicas that did not.
	Unresponsive func(context.Context) (unresponsive map[mesh.ID]bool, missing []string)
}

// Server answers Watch.
type Server struct {
	feed  *feed
	seats seats
	// stopping ends with Stop.
	stopping context.Context //nolint:containedctx // of all calls
	stop     func()
	// sends are messages to viewers that do not read. They end after their calls.
	sends sync.WaitGroup
}

// New returns a Server. The caller must call Stop and Wait.
func New(o Options) *Server {
	s := &Server{seats: seats{taken: map[account][]*seat{}}}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.feed = newFeed(s.stopping, &o)
	return s
}

// Stop ends all calls, now and later.
func (s *Server) Stop() { s.stop() }

// Wait waits for what calls have begun. They must have ended.
func (s *Server) Wait() {
	s.sends.Wait()
	s.feed.hangs.running.Wait()
}

// Watch answers a call until it ends. The error is a gRPC status.
func (s *Server) Watch(r *adminv1.WatchRequest, stream adminv1.AdminService_WatchServer, rights Rights) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel(nil)
	defer context.AfterFunc(s.stopping, func() { cancel(errStopping) })()
	caller, denied, err := check(ctx, r.GetSections(), nil, rights)
	if err != nil {
		return err
	}
	v, err := newView(r.GetSections(), denied)
	if err != nil {
		return err
	}
	c := &call{server: s, view: v, stream: stream, checks: make(chan map[section]*status.Status), leave: func() {}}
	if len(v.allowed()) == 0 {
		return c.refuse(ctx) // without a seat
	}
	defer grpcconn.Begin(ctx)()
	of := account{caller: caller.Name}
	if caller.Shared {
		of.source = grpcconn.Source(ctx)
	}
	leave, err := s.seats.take(of, func() { cancel(errEvicted) })
	if err != nil {
		return err
	}
	defer leave()
	running.Go(func() { cancel(c.recheck(ctx, rights)) }) // a message that is being sent does not delay it
	return c.serve(ctx)
}

// ended returns why a call ended with its context.
func ended(ctx context.Context) error {
	cause := context.Cause(ctx)
	if _, ok := status.FromError(cause); ok {
		return cause
	}
	return status.FromContextError(cause).Err()
}
