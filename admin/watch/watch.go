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
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/grpcconn"
	"github.com/sonde-mesh/sonde/internal/run"
)

const (
	// checkEvery is how often the rights of a viewer are checked.
	checkEvery = time.Minute
	// sendTimeout is how long a viewer may take to read a message. Later messages wait meanwhile, so that it is behind by
	// at most one reading.
	sendTimeout = 10 * time.Second
)

var (
	errStopping = status.Error(codes.Unavailable, "the control plane is stopping")
	errSlow     = status.Errorf(codes.Aborted, "the caller has not read for %s", sendTimeout)
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
	defer cancel(nil)
	caller, denied, err := check(ctx, v.sections, rights)
	if err != nil {
		return err
	}
	v.denied = denied
	defer grpcconn.Begin(ctx)()
	leave, err := s.seats.take(viewer{caller, grpcconn.Source(ctx)}, func() { cancel(errFull) })
	if err != nil {
		return err
	}
	defer leave()
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
	checks := make(chan checked)
	running.Go(func() {
		for range run.Ticks(ctx, checkEvery) {
			_, denied, err := check(ctx, v.sections, rights)
			select {
			case checks <- checked{denied, err}:
			case <-ctx.Done():
			}
		}
	})
	return s.serve(ctx, v, stream, checks)
}

// checked is the result of check.
type checked struct {
	denied map[section]*status.Status
	err    error
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

// serve sends readings until ctx ends, or the viewer has the right to no section.
func (s *Server) serve(
	ctx context.Context, v *view, stream adminv1.AdminService_WatchServer, checks <-chan checked,
) error {
	if len(v.allowed()) == 0 {
		return refuse(ctx, v, stream)
	}
	leave := s.feed.join(v.allowed())
	defer func() { leave() }()
	var sent time.Time // the begin of the reading that was sent last
	for {
		now, err := s.feed.read(ctx, v.allowed())
		if err != nil {
			return ended(ctx)
		}
		for m := range v.update(now.sections) {
			if err := send(ctx, stream, m); err != nil {
				return err
			}
		}
		if !now.began.Equal(sent) {
			sent = now.began
			if err := send(ctx, stream, now.end()); err != nil {
				return err
			}
		}
		next := time.NewTimer(time.Until(now.next))
		select {
		case <-next.C:
		case c := <-checks:
			next.Stop()
			if c.err != nil {
				return c.err
			}
			before := leave
			v.denied, sent = c.denied, time.Time{}
			leave = s.feed.join(v.allowed())
			before()
			if len(v.allowed()) == 0 {
				return refuse(ctx, v, stream)
			}
		case <-ctx.Done():
			next.Stop()
			return ended(ctx)
		}
	}
}

// refuse sends the error of each section as a whole reading, so that the viewer shows it, and returns one of them.
func refuse(ctx context.Context, v *view, stream adminv1.AdminService_WatchServer) error {
	for m := range v.update(nil) {
		if err := send(ctx, stream, m); err != nil {
			return err
		}
	}
	now := &reading{began: time.Now()}
	if err := send(ctx, stream, now.end()); err != nil {
		return err
	}
	return v.denied[v.sections[0]].Err()
}

// end returns the message after all changes of a reading.
func (r *reading) end() *adminv1.WatchResponse {
	return &adminv1.WatchResponse{Reading: &adminv1.WatchReading{
		Age: durationpb.New(time.Since(r.began)), Next: durationpb.New(max(0, time.Until(r.next))),
	}}
}

// send sends a message, unless the viewer does not read. Then Send returns when the call has ended.
func send(ctx context.Context, stream adminv1.AdminService_WatchServer, m *adminv1.WatchResponse) error {
	sent := make(chan error, 1)
	go func() { sent <- stream.Send(m) }()
	late := time.NewTimer(sendTimeout)
	defer late.Stop()
	select {
	case err := <-sent:
		return err
	case <-late.C:
		return errSlow
	case <-ctx.Done():
		return ended(ctx)
	}
}

// ended returns why a call ended with its context.
func ended(ctx context.Context) error {
	cause := context.Cause(ctx)
	if _, ok := status.FromError(cause); ok {
		return cause
	}
	return status.FromContextError(cause).Err()
}
