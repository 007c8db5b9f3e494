package probe_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

func TestTCP(t *testing.T) {
	closed := closedPort(t)
	l := listen(t, "127.0.0.1") // never accepts, which does not matter
	t.Cleanup(func() { _ = l.Close() })
	tests := map[string]struct {
		port          int32
		verdict, text string
	}{
		"open":   {int32(port(l)), "success", "success\n"},
		"closed": {closed, "failure", fmt.Sprintf("503 Service Unavailable\ndial tcp 127.0.0.1:%d: connect: connection refused\n", closed)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := mesh.Probe{TimeoutSeconds: 1, TCPSocket: &mesh.TCPSocketProbe{Port: tc.port}}
			address := serve(t, probe.Options{Table: mesh.ProbeTable{p}})
			if verdict, text := (kubelet{}).probe(t, address, p.VirtualPath(), ""); verdict != tc.verdict || text != tc.text {
				t.Errorf("verdict = %s %q, want %s %q", verdict, text, tc.verdict, tc.text)
			}
		})
	}
}

// A check leaves no connection behind, on either side, in any state.
func TestTCPLeavesNothing(t *testing.T) {
	app := apply(t, "127.0.0.1", func(net.Conn) {})
	p := mesh.Probe{TimeoutSeconds: 1, TCPSocket: &mesh.TCPSocketProbe{Port: app.port}}
	address := serve(t, probe.Options{Table: mesh.ProbeTable{p}})
	const checks = 8
	for range checks {
		if verdict, text := (kubelet{}).probe(t, address, p.VirtualPath(), ""); verdict != "success" {
			t.Fatalf("verdict = %s %q", verdict, text)
		}
	}
	eventually(t, func() bool { _, n := app.requests(); return n == checks })
	eventually(t, func() bool { return len(sockets(t, app.port)) == 1 })
}

// sockets returns the lines of the kernel's table that have 127.0.0.1 and the port.
func sockets(t testing.TB, port int32) []string {
	t.Helper()
	table, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, fmt.Sprintf("0100007F:%04X ", port)) {
			found = append(found, line)
		}
	}
	return found
}

// healthServer answers Check with what its function says.
type healthServer struct {
	healthpb.UnimplementedHealthServer
	check func(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error)
}

func (s healthServer) Check(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return s.check(ctx, r)
}

func serveGRPC(t testing.TB, l net.Listener, register func(*grpc.Server)) {
	t.Helper()
	s := grpc.NewServer()
	register(s)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

func says(status healthpb.HealthCheckResponse_ServingStatus, err error) func(*grpc.Server) {
	return func(s *grpc.Server) {
		healthpb.RegisterHealthServer(s, healthServer{check: func(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
			return &healthpb.HealthCheckResponse{Status: status}, err
		}})
	}
}

func TestGRPC(t *testing.T) {
	hangs := func(s *grpc.Server) {
		healthpb.RegisterHealthServer(s, healthServer{check: func(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}})
	}
	tests := map[string]struct {
		register      func(*grpc.Server)
		verdict, text string
	}{
		"SERVING":         {says(healthpb.HealthCheckResponse_SERVING, nil), "success", "success"},
		"NOT_SERVING":     {says(healthpb.HealthCheckResponse_NOT_SERVING, nil), "failure", "service unhealthy (responded with NOT_SERVING)"},
		"UNKNOWN":         {says(healthpb.HealthCheckResponse_UNKNOWN, nil), "failure", "UNKNOWN"},
		"SERVICE_UNKNOWN": {says(healthpb.HealthCheckResponse_SERVICE_UNKNOWN, nil), "failure", "SERVICE_UNKNOWN"},
		"status 42":       {says(42, nil), "failure", "42"},
		"not there":       {func(*grpc.Server) {}, "failure", "does not implement the grpc health protocol"},
		"NotFound":        {says(0, status.Error(codes.NotFound, "SECRET")), "failure", "error: health rpc probe failed: rpc error: code = NotFound"},
		"Unimplemented":   {says(0, status.Error(codes.Unimplemented, "SECRET")), "failure", "does not implement"},
		"hangs":           {hangs, "failure", "timeout: health rpc did not complete within 1s"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l := listen(t, "127.0.0.1")
			serveGRPC(t, l, tc.register)
			p := mesh.Probe{TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: int32(port(l))}}
			verdict, text := kubelet{}.probe(t, serve(t, probe.Options{Table: mesh.ProbeTable{p}}), p.VirtualPath(), "")
			if verdict != tc.verdict || !strings.Contains(text, tc.text) || strings.Contains(text, "SECRET") {
				t.Errorf("verdict = %s %q, want %s %q", verdict, text, tc.verdict, tc.text)
			}
		})
	}
}

func TestGRPCWithoutServer(t *testing.T) {
	http1 := answer(t, "HTTP/1.1 400 Bad Request\r\n\r\n")
	for name, port := range map[string]int32{"refused": closedPort(t), "HTTP/1.1": http1.port} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := mesh.Probe{TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: port}}
			begin := time.Now()
			verdict, text := kubelet{}.probe(t, serve(t, probe.Options{Table: mesh.ProbeTable{p}}), p.VirtualPath(), "")
			want := fmt.Sprintf("503 Service Unavailable\ntimeout: failed to connect service 127.0.0.1:%d within 1s: context deadline exceeded\n", port)
			if took := time.Since(begin); verdict != "failure" || text != want || took < time.Second {
				t.Errorf("verdict after %s = %s %q, want failure %q after at least 1s", took, verdict, text, want)
			}
		})
	}
}

// The application sees whom the kubelet would have asked, as whom, and for what.
func TestGRPCRequest(t *testing.T) {
	for _, service := range []string{"", "liveness", "a/b c?ü#%"} {
		t.Run(service, func(t *testing.T) {
			l := listen(t, "127.0.0.1")
			var got string
			serveGRPC(t, l, func(s *grpc.Server) {
				healthpb.RegisterHealthServer(s, healthServer{check: func(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
					md, _ := metadata.FromIncomingContext(ctx)
					agent, _, _ := strings.Cut(md.Get("user-agent")[0], " ")
					got = fmt.Sprint(r.GetService(), md.Get(":authority"), agent)
					return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
				}})
			})
			p := mesh.Probe{TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: int32(port(l)), Service: service}}
			verdict, text := kubelet{}.probe(t, serve(t, probe.Options{Table: mesh.ProbeTable{p}}), p.VirtualPath(), "")
			if want := fmt.Sprint(service, []string{l.Addr().String()}, "kube-probe/1.36"); verdict != "success" || got != want {
				t.Errorf("verdict = %s %q after %q, want %q", verdict, text, got, want)
			}
		})
	}
}

// A server that listens late, but in time, passes.
func TestGRPCServerIsLate(t *testing.T) {
	late := closedPort(t)
	p := mesh.Probe{TimeoutSeconds: 5, GRPC: &mesh.GRPCProbe{Port: late}}
	handler := serve(t, probe.Options{Table: mesh.ProbeTable{p}})
	listening := make(chan net.Listener, 1)
	timer := time.AfterFunc(300*time.Millisecond, func() {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", late))
		if err != nil {
			t.Error(err)
		}
		listening <- l
	})
	defer timer.Stop()
	verdicts := make(chan string, 1)
	go func() {
		verdict, _ := kubelet{}.probe(t, handler, p.VirtualPath(), "")
		verdicts <- verdict
	}()
	if l := <-listening; l != nil {
		serveGRPC(t, l, says(healthpb.HealthCheckResponse_SERVING, nil))
	}
	if verdict := <-verdicts; verdict != "success" {
		t.Errorf("verdict = %s", verdict)
	}
}
