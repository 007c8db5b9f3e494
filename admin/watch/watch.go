// Package watch answers the call Watch of the admin API: it sends lists and their changes. The lists are read once for
// all viewers, and not at all without one.
package watch

import (
	"cmp"
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/grpcconn"
	"github.com/sonde-mesh/sonde/internal/run"
)

const (
	// checkEvery is how often the rights of a viewer are checked.
	checkEvery = time.Minute
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

// Rights returns the caller's name if the caller has the right. The error is a gRPC status.
type Rights func(ctx context.Context, need adminv1.Right) (caller string, err error)

// Options of a Server. All are required.
type Options struct {
	// Calls returns what answers the calls of one reading, whose responses must not change later. Lists of objects are
	// called by one goroutine. before is of the reading before, and may be nil.
	Calls func(before Calls) Calls
	// Ready returns why objects cannot be listed yet.
	Ready func() error
	// Unresponsive asks all agents. It returns the proxies whose agents did not answer in time, and the names of the
	// replicas that did not.
	Unresponsive func(context.Context) (unresponsive map[mesh.ID]bool, missing []string)
}

// Server answers Watch.
type Server struct {
	feed     *feed
	seats    seats
	stopping chan struct{}
	stop     func()
}

// New returns a Server. The caller must call Stop.
func New(o Options) *Server {
	s := &Server{feed: newFeed(&o), seats: seats{taken: map[viewer][]*seat{}}, stopping: make(chan struct{})}
	s.stop = sync.OnceFunc(func() { close(s.stopping) })
	return s
}

// Stop ends all calls, now and later.
func (s *Server) Stop() {
	s.stop()
	s.feed.hangs.running.Wait()
}

// Watch answers a call until it ends. The error is a gRPC status.
func (s *Server) Watch(r *adminv1.WatchRequest, stream adminv1.AdminService_WatchServer, rights Rights) error {
	v, err := newView(r.GetSections())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel(nil)
	running.Go(func() {
		select {
		case <-s.stopping:
			cancel(errStopping)
		case <-ctx.Done():
		}
	})
	caller, denied, err := check(ctx, v.sections, rights)
	if err != nil {
		return err
	}
	v.denied = denied
	c := &call{feed: s.feed, view: v, stream: stream, checks: make(chan map[section]*status.Status), leave: func() {}}
	if len(v.allowed()) == 0 {
		return c.refuse(ctx) // without a seat
	}
	defer grpcconn.Begin(ctx)()
	leave, err := s.seats.take(viewer{caller, grpcconn.Source(ctx)}, func() { cancel(errFull) })
	if err != nil {
		return err
	}
	defer leave()
	running.Go(func() {
		for range run.Ticks(ctx, checkEvery) {
			_, denied, err := check(ctx, v.sections, rights)
			if err != nil {
				cancel(err) // a message that is being sent does not delay it
				return
			}
			select {
			case c.checks <- denied:
			case <-ctx.Done():
			}
		}
	})
	return c.serve(ctx)
}

// check checks the rights to sections. The error is a gRPC status, and not PERMISSION_DENIED.
func check(ctx context.Context, sections []section, rights Rights) (
	caller string, denied map[section]*status.Status, err error,
) {
	answers := map[adminv1.Right]error{}
	denied = map[section]*status.Status{}
	for _, s := range sections {
		right, _ := adminv1.RightOfSection(s)
		if _, known := answers[right]; !known {
			var name string
			name, answers[right] = rights(ctx, right)
			caller = cmp.Or(caller, name)
		}
		switch err := answers[right]; {
		case status.Code(err) == codes.PermissionDenied:
			denied[s] = status.Convert(err)
		case err != nil:
			return "", nil, err
		}
	}
	return caller, denied, nil
}

// ended returns why a call ended with its context.
func ended(ctx context.Context) error {
	cause := context.Cause(ctx)
	if _, ok := status.FromError(cause); ok {
		return cause
	}
	return status.FromContextError(cause).Err()
}
