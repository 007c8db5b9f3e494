package dashboard

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/internal/run"
)

// watched answers Watch: it sends everything each second. It counts calls, and those that have not ended.
type watched struct {
	counting
	calls, open atomic.Int64
	fails       atomic.Pointer[error] // of calls, now and later
}

func newWatched() *watched {
	w := &watched{counting: counting{wellAPI(), new(atomic.Int64)}}
	w.fail(nil)
	return w
}

func (w *watched) fail(err error) { w.fails.Store(&err) }

func (w *watched) Watch(ctx context.Context, _ *adminv1.WatchRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[adminv1.WatchResponse], error) {
	w.calls.Add(1)
	w.open.Add(1)
	context.AfterFunc(ctx, func() { w.open.Add(-1) })
	return &sent{ctx: ctx, of: w}, nil
}

// sent is one call.
type sent struct {
	grpc.ClientStream
	ctx   context.Context //nolint:containedctx // as in the stream
	of    *watched
	queue []*adminv1.WatchResponse
	later bool
}

func (s *sent) Recv() (*adminv1.WatchResponse, error) {
	if len(s.queue) == 0 {
		if s.later {
			if err := run.Sleep(s.ctx, time.Second); err != nil {
				return nil, err
			}
		}
		s.later = true
		if err := *s.of.fails.Load(); err != nil {
			return nil, err
		}
		s.queue = s.of.all()
	}
	m := s.queue[0]
	s.queue = s.queue[1:]
	return m, nil
}

// all is a whole reading.
func (w *watched) all() []*adminv1.WatchResponse {
	tail := &adminv1.Tail{}
	part := func(s adminv1.WatchRequest_Section, names ...string) *adminv1.WatchResponse {
		return &adminv1.WatchResponse{Section: s, Reset_: true, Rest: true, Names: names}
	}
	meshes, dataplanes := part(adminv1.WatchRequest_MESHES, "default"), part(adminv1.WatchRequest_DATAPLANES, "default/web-1")
	services, proxies := part(adminv1.WatchRequest_SERVICES, "default/web"), part(adminv1.WatchRequest_PROXIES, "default/web-1")
	health, restarts := part(adminv1.WatchRequest_HEALTH), part(adminv1.WatchRequest_RESTARTS)
	object := []byte(`{"name":"default","spec":{}}`)
	meshes.List = &adminv1.WatchResponse_Meshes{Meshes: &adminv1.ListMeshesResponse{Meshes: []*adminv1.Mesh{{Object: object}}, Tail: tail}}
	dataplanes.List = &adminv1.WatchResponse_Dataplanes{Dataplanes: &adminv1.ListDataplanesResponse{Dataplanes: w.dataplanes, Tail: tail}}
	services.List = &adminv1.WatchResponse_Services{Services: &adminv1.ListServicesResponse{Services: w.services, Tail: tail}}
	proxies.List = &adminv1.WatchResponse_Proxies{Proxies: &adminv1.ListProxiesResponse{Proxies: w.proxies, Tail: tail}}
	health.List = &adminv1.WatchResponse_Health{Health: w.health}
	restarts.Error = &adminv1.WatchError{Code: uint32(codes.PermissionDenied), Message: "not allowed"}
	return []*adminv1.WatchResponse{meshes, dataplanes, services, proxies, health, restarts, {Reading: &adminv1.WatchReading{Next: durationpb.New(time.Second)}}}
}

// The control plane sends what changes while a page is open. Connections do not last, since their token does not.
func TestFollowsTheStream(t *testing.T) {
	w := newWatched()
	watch(t, callOf(w), func(s *source) {
		synctest.Wait()
		if n := w.calls.Load(); n != 0 {
			t.Errorf("%d calls before a page is open", n)
		}
		lookFor(s, 12*time.Minute)
		if n, open := w.calls.Load(), w.open.Load(); n != 3 || open != 1 || w.readings.Load() != 0 {
			t.Errorf("%d calls in 12 minutes, %d of them open, and %d readings besides", n, open, w.readings.Load())
		}
		sections, due := s.look()
		for _, p := range parts {
			section := sections[p.name]
			if denied := p.name == "restarts"; section.Denied != denied || !denied && time.Since(*section.ReadAt) > 2*time.Second {
				t.Errorf("%s: %+v", p.name, section)
			}
		}
		if time.Until(due) <= 0 {
			t.Error("the page takes the stream for blindness")
		}
		time.Sleep(2 * unseenAfter)
		if open := w.open.Load(); open != 0 {
			t.Errorf("%d calls without a page", open)
		}
	})
}

// A control plane that ends the stream leaves the page blind, until it is back.
func TestBlindSinceTheStreamEnded(t *testing.T) {
	w := newWatched()
	watch(t, callOf(w), func(s *source) {
		lookFor(s, time.Minute)
		for _, err := range []error{io.ErrUnexpectedEOF, grpcstatus.Error(codes.Unauthenticated, "expired")} {
			w.fail(err)
			lookFor(s, time.Minute)
			sections, due := s.look()
			for _, p := range parts {
				if section := sections[p.name]; section.Error == "" || section.ReadAt != nil && time.Since(*section.ReadAt) < 59*time.Second {
					t.Errorf("%s: %+v", p.name, section)
				}
			}
			if time.Until(due) > 0 {
				t.Error("a reading is due later")
			}
			w.fail(nil)
			lookFor(s, 3*time.Second)
			sections, _ = s.look()
			if section := sections["workloads"]; section.Error != "" || time.Since(*section.ReadAt) > 2*time.Second {
				t.Errorf("it is back, and workloads are %+v", section)
			}
		}
	})
}

// A control plane that has as many viewers as it may have is left alone for a while.
func TestTooManyViewers(t *testing.T) {
	w := newWatched()
	w.fail(grpcstatus.Error(codes.ResourceExhausted, "256 calls watch already"))
	watch(t, callOf(w), func(s *source) {
		lookFor(s, 5*time.Minute)
		if n := w.calls.Load(); n < 8 || n > 14 {
			t.Errorf("%d calls in five minutes, want about one every %s", n, failedLimit)
		}
	})
}

// A control plane that refuses the call itself is taken at its word, and left alone for a while.
func TestWatchIsDenied(t *testing.T) {
	w := newWatched()
	watch(t, callOf(w), func(s *source) {
		lookFor(s, time.Minute)
		w.fail(grpcstatus.Error(codes.PermissionDenied, "not allowed"))
		before := w.calls.Load()
		lookFor(s, time.Minute)
		sections, _ := s.look()
		for _, p := range parts {
			if section := sections[p.name]; !section.Denied {
				t.Errorf("%s: %+v", p.name, section)
			}
		}
		if n := w.calls.Load() - before; n > 3 {
			t.Errorf("%d calls in a minute", n)
		}
	})
}
