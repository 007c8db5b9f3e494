package health

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Limits of gRPC, whose requests contain no more than the name of a check.
const (
	maxGRPCMessage = 4 << 10
	maxWatches     = 64
	watchPeriod    = time.Second
)

// grpcService implements grpc.health.v1. A service is "livez", "readyz", or one of their checks, such as "readyz/view";
// "" means "readyz".
type grpcService struct {
	grpc_health_v1.UnimplementedHealthServer
	registry *Registry

	mu      sync.Mutex
	watches []*watch // open watches, the oldest first
}

// watch is one call of Watch.
type watch struct{ end context.CancelCauseFunc }

// errMadeRoom ends the oldest watch if there are too many, so that no client locks others out. A client reopens an
// ended watch.
var errMadeRoom = status.Errorf(codes.ResourceExhausted, "%d newer watches are open", maxWatches)

// grpcPath is the path prefix of gRPC calls.
const grpcPath = "POST /grpc.health.v1.Health/"

// newGRPC returns a handler for gRPC over an HTTP server that speaks HTTP/2 without TLS.
func newGRPC(r *Registry) http.Handler {
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxGRPCMessage))
	grpc_health_v1.RegisterHealthServer(server, &grpcService{registry: r})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A watch may outlast the server's write timeout; its request, and other calls, may not.
		if r.ProtoMajor < 2 || http.NewResponseController(w).SetWriteDeadline(time.Time{}) != nil {
			http.Error(w, "gRPC needs HTTP/2", http.StatusHTTPVersionNotSupported)
			return
		}
		server.ServeHTTP(w, r)
	})
}

// find returns the checks of a service, and false if the service is unknown.
func (s *grpcService) find(service string) ([]*check, bool) {
	group, name, single := strings.Cut(service, "/")
	if service == "" {
		group = string(Readyz)
	}
	for _, g := range groups {
		if string(g) != group {
			continue
		}
		checks := s.registry.of(g)
		if !single {
			return checks, true
		}
		for _, c := range checks {
			if c.Name == name {
				return []*check{c}, true
			}
		}
	}
	return nil, false
}

func statusOf(ctx context.Context, checks []*check) grpc_health_v1.HealthCheckResponse_ServingStatus {
	for _, r := range resultsOf(ctx, checks) {
		if r.Failed() {
			return grpc_health_v1.HealthCheckResponse_NOT_SERVING
		}
	}
	return grpc_health_v1.HealthCheckResponse_SERVING
}

// Check implements grpc_health_v1.HealthServer.
func (s *grpcService) Check(
	ctx context.Context, r *grpc_health_v1.HealthCheckRequest,
) (*grpc_health_v1.HealthCheckResponse, error) {
	checks, ok := s.find(r.GetService())
	if !ok {
		return nil, status.Errorf(codes.NotFound, "unknown service %q", r.GetService())
	}
	return &grpc_health_v1.HealthCheckResponse{Status: statusOf(ctx, checks)}, nil
}

// List implements grpc_health_v1.HealthServer.
func (s *grpcService) List(
	ctx context.Context, _ *grpc_health_v1.HealthListRequest,
) (*grpc_health_v1.HealthListResponse, error) {
	all := map[string]*grpc_health_v1.HealthCheckResponse{}
	for _, group := range groups {
		checks := s.registry.of(group)
		all[string(group)] = &grpc_health_v1.HealthCheckResponse{Status: statusOf(ctx, checks)}
		for _, c := range checks {
			all[string(group)+"/"+c.Name] = &grpc_health_v1.HealthCheckResponse{Status: statusOf(ctx, []*check{c})}
		}
	}
	return &grpc_health_v1.HealthListResponse{Statuses: all}, nil
}

// Watch implements grpc_health_v1.HealthServer.
func (s *grpcService) Watch(r *grpc_health_v1.HealthCheckRequest, stream grpc_health_v1.Health_WatchServer) error {
	ctx, end := context.WithCancelCause(stream.Context())
	w := &watch{end}
	s.open(w)
	defer s.close(w)
	ticker := time.NewTicker(watchPeriod)
	defer ticker.Stop()
	last := grpc_health_v1.HealthCheckResponse_UNKNOWN
	for {
		now := grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN
		if checks, ok := s.find(r.GetService()); ok {
			now = statusOf(ctx, checks)
		}
		if now != last && ctx.Err() == nil {
			if err := stream.Send(&grpc_health_v1.HealthCheckResponse{Status: now}); err != nil {
				return err
			}
			last = now
		}
		select {
		case <-ctx.Done():
			if cause := context.Cause(ctx); errors.Is(cause, errMadeRoom) {
				return cause
			}
			return status.FromContextError(ctx.Err()).Err()
		case <-ticker.C:
		}
	}
}

// open adds a watch, and ends the oldest if there are too many.
func (s *grpcService) open(w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches = append(s.watches, w)
	if len(s.watches) > maxWatches {
		s.watches[0].end(errMadeRoom)
		s.watches = s.watches[1:]
	}
}

// close removes a watch.
func (s *grpcService) close(w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.end(nil)
	s.watches = slices.DeleteFunc(s.watches, func(other *watch) bool { return other == w })
}
