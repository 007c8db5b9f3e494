package probe

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// longestCall limits a call whose caller never gives up. A caller that probes gives up within minutes.
const longestCall = time.Hour

// TargetServer answers gRPC health checks on one port of a written Dataplane. Each check of the application runs for as
// long as its caller waits.
type TargetServer struct {
	target  Target
	dial    Dial
	metrics entryMetrics
	servers *servers
	stop    context.CancelFunc
	running sync.WaitGroup
}

// NewTargetServer returns a server. The caller must call Close.
func NewTargetServer(t Target, dial Dial, r prometheus.Registerer) (*TargetServer, error) {
	all, err := newMetrics(r)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &TargetServer{target: t, dial: dial.or(plainClose), metrics: all.of(mesh.Probe{GRPC: &mesh.GRPCProbe{}}),
		stop: stop}
	s.servers = newServers(ctx, http.NotFoundHandler(), 0, MaxConnections, s.answer)
	return s, nil
}

// Serve serves l until it is closed. It may be called again, with another listener.
func (s *TargetServer) Serve(l net.Listener) error { return s.servers.serveGRPC(l, anyService) }

// Close ends all connections and waits for calls.
func (s *TargetServer) Close() {
	s.stop()
	_ = s.servers.close() // nothing else can be done
	s.running.Wait()
}

// callTimeout returns how long the caller of r waits (gRPC: PROTOCOL-HTTP2.md, Timeout), or longestCall.
func callTimeout(r *http.Request) time.Duration {
	text := r.Header.Get("Grpc-Timeout")
	if text == "" {
		return longestCall
	}
	unit := map[byte]time.Duration{
		'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond,
		'n': time.Nanosecond,
	}[text[len(text)-1]]
	n, err := strconv.ParseUint(text[:len(text)-1], 10, 32)
	if err != nil || unit == 0 || time.Duration(n) >= longestCall/unit {
		return longestCall
	}
	return time.Duration(n) * unit
}

// answer checks the application.
func (s *TargetServer) answer(r *http.Request, service string) result {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	a := &grpcProber{address: s.target.Asked.String(), service: service, timeout: callTimeout(r),
		dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return s.dial(ctx, network, s.target.Application.String())
		}}
	began := time.Now()
	asked := make(chan result, 1)
	by := askerOf(r, mesh.Probe{GRPC: &mesh.GRPCProbe{Service: service}})
	s.running.Go(func() { asked <- a.probe(ctx, by) })
	select {
	case res := <-asked:
		if ctx.Err() != nil { // no verdict
			return ending
		}
		s.metrics.observe(res.verdict, time.Since(began))
		return res
	case <-evicted(ctx):
		s.metrics.count(errored)
		return overloaded
	}
}
