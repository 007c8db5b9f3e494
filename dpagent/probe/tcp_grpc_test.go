package probe_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func TestTCP(t *testing.T) {
	open := func(p *pod) int32 { return int32(port(p.listen(localhost.String()))) } // it never accepts a connection, but the kernel does
	for name, tc := range map[string]struct {
		port          func(*pod) int32
		verdict, text string // PORT stands for the port
	}{
		"open":   {open, "success", "success\n"},
		"closed": {(*pod).closedPort, "failure", "503 Service Unavailable\ndial tcp 127.0.0.1:PORT: connect: connection refused\n"},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			pod := newPod(t)
			p := mesh.Probe{TimeoutSeconds: 1, TCPSocket: &mesh.TCPSocketProbe{Port: tc.port(pod)}}
			want := strings.Replace(tc.text, "PORT", strconv.Itoa(int(p.Port())), 1)
			if verdict, text := pod.probe(pod.serve(probe.Options{Table: mesh.ProbeTable{p}}), p.VirtualPath(), ""); verdict != tc.verdict || text != want {
				t.Errorf("verdict = %s %q, want %s %q", verdict, text, tc.verdict, want)
			}
		})
	}
}

// healthServer answers Check with the result of its function.
type healthServer struct {
	healthpb.UnimplementedHealthServer
	check func(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error)
}

func (s healthServer) Check(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return s.check(ctx, r)
}

// serveGRPC starts an application, and returns its port.
func (p *pod) serveGRPC(register func(*grpc.Server)) int32 {
	p.t.Helper()
	l := p.listen(localhost.String())
	p.serveGRPCAt(l, register)
	return int32(port(l))
}

func (p *pod) serveGRPCAt(l net.Listener, register func(*grpc.Server)) {
	s := grpc.NewServer()
	register(s)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	p.t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			p.t.Error(err)
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
		virtual.Run(t, name, func(t *testing.T) {
			pod := newPod(t)
			p := mesh.Probe{TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: pod.serveGRPC(tc.register)}}
			verdict, text := pod.probe(pod.serve(probe.Options{Table: mesh.ProbeTable{p}}), p.VirtualPath(), "")
			if verdict != tc.verdict || !strings.Contains(text, tc.text) || strings.Contains(text, "SECRET") {
				t.Errorf("verdict = %s %q, want %s %q", verdict, text, tc.verdict, tc.text)
			}
		})
	}
}

func TestGRPCWithoutServer(t *testing.T) {
	for name, port := range map[string]func(*pod) int32{
		"refused": (*pod).closedPort, "HTTP/1.1": func(p *pod) int32 { return p.answer("HTTP/1.1 400 Bad Request\r\n\r\n").port },
	} {
		virtual.Run(t, name, func(t *testing.T) {
			pod := newPod(t)
			p := mesh.Probe{TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: port(pod)}}
			address, began := pod.serve(probe.Options{Table: mesh.ProbeTable{p}}), time.Now()
			verdict, text := pod.probe(address, p.VirtualPath(), "")
			want := fmt.Sprintf("503 Service Unavailable\ntimeout: failed to connect service 127.0.0.1:%d within 1s: context deadline exceeded\n", p.Port())
			if took := time.Since(began); verdict != "failure" || text != want || took != time.Second {
				t.Errorf("verdict after %s = %s %q, want failure %q after 1s", took, verdict, text, want)
			}
		})
	}
}

// The application sees the authority, user agent and service that the kubelet would have sent.
func TestGRPCRequest(t *testing.T) {
	for _, service := range []string{"", "liveness", "a/b c?ü#%"} {
		virtual.Run(t, service, func(t *testing.T) {
			pod := newPod(t)
			var got string
			port := pod.serveGRPC(func(s *grpc.Server) {
				healthpb.RegisterHealthServer(s, healthServer{check: func(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
					md, _ := metadata.FromIncomingContext(ctx)
					agent, _, _ := strings.Cut(md.Get("user-agent")[0], " ")
					got = fmt.Sprint(r.GetService(), md.Get(":authority"), agent)
					return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
				}})
			})
			p := mesh.Probe{TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: port, Service: service}}
			verdict, text := pod.probe(pod.serve(probe.Options{Table: mesh.ProbeTable{p}}), p.VirtualPath(), "")
			if want := fmt.Sprint(service, []string{fmt.Sprintf("127.0.0.1:%d", port)}, "kube-probe/1.36"); verdict != "success" || got != want {
				t.Errorf("verdict = %s %q after %q, want %q", verdict, text, got, want)
			}
		})
	}
}

// A server that begins to listen late, but within the timeout, passes.
func TestGRPCServerIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		l := pod.listen(localhost.String())
		p := mesh.Probe{TimeoutSeconds: 5, GRPC: &mesh.GRPCProbe{Port: int32(port(l))}}
		_ = l.Close()
		handler, verdicts := pod.serve(probe.Options{Table: mesh.ProbeTable{p}}), make(chan string, 1)
		go func() {
			verdict, _ := pod.probe(handler, p.VirtualPath(), "")
			verdicts <- verdict
		}()
		<-time.After(300 * time.Millisecond)
		late, err := pod.network.Listen(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		pod.serveGRPCAt(late, says(healthpb.HealthCheckResponse_SERVING, nil))
		if verdict := <-verdicts; verdict != "success" {
			t.Errorf("verdict = %s", verdict)
		}
	})
}
