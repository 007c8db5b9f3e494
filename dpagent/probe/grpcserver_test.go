package probe_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// callHealth calls grpc.health.v1.Health/Check as the kubelet does.
func (p *pod) callHealth(address, service string) (healthpb.HealthCheckResponse_ServingStatus, error) {
	p.t.Helper()
	return p.callHealthAs("kube-probe/1.36", address, service)
}

// callHealthAs is callHealth with a user agent.
func (p *pod) callHealthAs(agent, address, service string) (healthpb.HealthCheckResponse_ServingStatus, error) {
	p.t.Helper()
	dial := func(ctx context.Context, address string) (net.Conn, error) { return p.dial(ctx, "tcp", address) }
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent(agent))
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
	defer cancel()
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
	return answer.GetStatus(), err
}

// servePorts serves a handler in per-port mode with one gRPC probe, and returns its address.
func (p *pod) servePorts(of mesh.Probe, o probe.Options) string {
	p.t.Helper()
	l := p.listen(localhost.String())
	of.VirtualPort = int32(port(l))
	o.Table, o.PodIP, o.PerPort, o.Dial = mesh.ProbeTable{of}, localhost, true, p.dial
	h, err := probe.New(o)
	if err != nil {
		p.t.Fatal(err)
	}
	if ports := h.Ports(); len(ports) != 1 || !ports[0].GRPC || ports[0].Address.String() != l.Addr().String() || ports[0].Timeout != time.Second {
		p.t.Errorf("Ports() = %v, want the gRPC probe's", ports)
	}
	p.run(context.Background(), h, l)
	return l.Addr().String()
}

func TestGRPCOnItsOwnPort(t *testing.T) {
	const serving, notServing = healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING
	tests := map[string]struct {
		register func(*grpc.Server) // nil for a closed port
		service  string             // the requested service
		want     healthpb.HealthCheckResponse_ServingStatus
		code     codes.Code
		reason   string
	}{
		"serving":         {register: says(serving, nil), service: "shop", want: serving},
		"not serving":     {register: says(notServing, nil), service: "shop", want: notServing},
		"unknown":         {register: says(healthpb.HealthCheckResponse_UNKNOWN, nil), service: "shop", want: healthpb.HealthCheckResponse_UNKNOWN},
		"another status":  {register: says(77, nil), service: "shop", want: 77},
		"an error":        {register: says(0, status.Error(codes.PermissionDenied, "SECRET")), service: "shop", code: codes.PermissionDenied},
		"no health":       {register: func(*grpc.Server) {}, service: "shop", code: codes.Unimplemented},
		"closed port":     {service: "shop", code: codes.DeadlineExceeded, reason: "failed to connect"},
		"another service": {register: says(serving, nil), service: "other", code: codes.NotFound, reason: "for another service"},
		"no service":      {register: says(serving, nil), code: codes.NotFound, reason: "for another service"},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			pod := newPod(t)
			p := mesh.Probe{TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: pod.closedPort(), Service: "shop"}}
			if tc.register != nil {
				p.GRPC.Port = pod.serveGRPC(tc.register)
			}
			got, err := pod.callHealth(pod.servePorts(p, probe.Options{}), tc.service)
			if s := status.Convert(err); s.Code() != tc.code || !strings.Contains(s.Message(), tc.reason) || got != tc.want {
				t.Errorf("answer %s, %v, want %s, %s %q", got, err, tc.want, tc.code, tc.reason)
			}
			if strings.Contains(status.Convert(err).Message(), "SECRET") {
				t.Error("the error has text of the application")
			}
		})
	}
}

// TestRefusedOnItsOwnPort calls as a kubelet of 1.38, which adds the address itself, and wants the text of the
// kubelet's own gRPC library.
func TestRefusedOnItsOwnPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		closed := pod.closedPort()
		address := pod.servePorts(mesh.Probe{TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: closed}}, probe.Options{})
		_, err := pod.callHealthAs("kube-probe/1.38", address, "")
		want := fmt.Sprintf(`connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:%d: connect: connection refused"`, closed)
		if got := status.Convert(err); got.Code() != codes.Unavailable || got.Message() != want {
			t.Errorf("error = %s %s, want %s %s", got.Code(), got.Message(), codes.Unavailable, want)
		}
	})
}

// TestGRPCPortCounts has a failing and a passing probe: both are counted and reported as on the virtual port.
func TestGRPCPortCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		statuses := make(chan healthpb.HealthCheckResponse_ServingStatus, 1)
		app := pod.serveGRPC(func(s *grpc.Server) {
			healthpb.RegisterHealthServer(s, healthServer{check: func(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
				return &healthpb.HealthCheckResponse{Status: <-statuses}, nil
			}})
		})
		metrics, failures := prometheus.NewRegistry(), make(chan probe.Failure, 10)
		address := pod.servePorts(mesh.Probe{
			Container: "shop", Type: mesh.ProbeReadiness, TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: app},
		}, probe.Options{Registerer: metrics, Failed: func(f probe.Failure) { failures <- f }})
		for _, status := range []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_NOT_SERVING, healthpb.HealthCheckResponse_SERVING} {
			statuses <- status
			if got, err := pod.callHealth(address, ""); err != nil || got != status {
				t.Errorf("answer %s, %v, want %s", got, err, status)
			}
		}
		want := map[string]float64{
			"sonde_probe_total shop readiness errored": 0, "sonde_probe_total shop readiness failure": 1,
			"sonde_probe_total shop readiness success": 1, "sonde_probe_total shop readiness warning": 0,
			"sonde_probe_duration_seconds shop readiness": 2,
		}
		if diff := cmp.Diff(want, counts(t, metrics)); diff != "" {
			t.Errorf("metrics (-want +got):\n%s", diff)
		}
		told := probe.Failure{
			Container: "shop", Probe: "readiness", Verdict: "failure", Class: probe.NotServing, Reason: "service unhealthy (responded with NOT_SERVING)",
		}
		if len(failures) != 1 || <-failures != told {
			t.Errorf("%d more failures are reported than %v", len(failures), told)
		}
	})
}

// TestGRPCPortRefuses sends calls that are no health checks: none reaches the application.
func TestGRPCPortRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		app := pod.apply(localhost.String(), func(net.Conn) {})
		address := pod.servePorts(mesh.Probe{TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: app.port}}, probe.Options{})
		protocols := &http.Protocols{}
		protocols.SetUnencryptedHTTP2(true)
		client := &http.Client{Transport: &http.Transport{Protocols: protocols, DialContext: pod.dial}}
		defer client.CloseIdleConnections()
		const check, grpcType, empty = "/grpc.health.v1.Health/Check", "application/grpc", "\x00\x00\x00\x00\x00"
		tests := map[string]struct {
			method, path, kind, body string
			status                   int
			code                     string
		}{
			"Watch":           {"POST", "/grpc.health.v1.Health/Watch", grpcType, empty, 200, "12"},
			"another method":  {"POST", "/echo.Echo/Say", grpcType, empty, 200, "12"},
			"a path to it":    {"POST", "/x/../grpc.health.v1.Health/Check", grpcType, empty, 200, "12"},
			"an escaped path": {"POST", "/grpc.health.v1.Health%2FCheck", grpcType, empty, 200, "12"},
			"GET":             {"GET", check, grpcType, "", 415, ""},
			"no gRPC":         {"POST", check, "text/plain", empty, 415, ""},
			"no message":      {"POST", check, grpcType, "", 200, "3"},
			"half of one":     {"POST", check, grpcType, "\x00\x00\x00\x00\x05ab", 200, "3"},
			"two":             {"POST", check, grpcType, empty + empty, 200, "3"},
			"compressed":      {"POST", check, grpcType, "\x01\x00\x00\x00\x00", 200, "3"},
			"nonsense":        {"POST", check, grpcType, "\x00\x00\x00\x00\x02\xff\xff", 200, "3"},
		}
		for name, tc := range tests {
			r, err := http.NewRequestWithContext(t.Context(), tc.method, "http://"+address+tc.path, strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", tc.kind)
			answer, err := client.Do(r)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			_ = answer.Body.Close()
			if answer.StatusCode != tc.status || answer.Header.Get("Grpc-Status") != tc.code {
				t.Errorf("%s: status %d, code %q, want %d and %q", name, answer.StatusCode, answer.Header.Get("Grpc-Status"), tc.status, tc.code)
			}
		}
		r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+address+check, strings.NewReader("\x00\x00\x00\x80\x00"+strings.Repeat("x", 32<<10)))
		if err != nil {
			t.Fatal(err)
		}
		if answer, err := client.Do(r); err == nil {
			_ = answer.Body.Close()
			t.Errorf("a message that is too long: %s", answer.Status)
		}
		for name, text := range map[string]string{"HTTP/1": "GET " + check + " HTTP/1.1\r\nHost: a\r\n\r\n", "TLS": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"} {
			if answer := pod.send(address, text); strings.HasPrefix(answer, "HTTP/") {
				t.Errorf("%s: answer %q", name, answer)
			}
		}
		if _, n := app.requests(); n > 0 {
			t.Errorf("the application got %d connections", n)
		}
	})
}

// send sends a text and returns everything received until the end.
func (p *pod) send(address, text string) string {
	p.t.Helper()
	c := p.connect(address)
	if _, err := c.Write([]byte(text)); err != nil {
		p.t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Error("the connection stays open")
	}
	return string(answer)
}

// TestTargetServer probes a port of a written Dataplane.
func TestTargetServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		asked := netip.MustParseAddrPort("192.0.2.1:9090")
		seen := make(chan string, 10)
		app := pod.serveGRPC(func(s *grpc.Server) {
			healthpb.RegisterHealthServer(s, healthServer{check: func(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
				headers, _ := metadata.FromIncomingContext(ctx)
				seen <- strings.Join(headers[":authority"], ",") + " " + r.GetService()
				return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
			}})
		})
		s, err := probe.NewTargetServer(probe.Target{Asked: asked, Application: at(localhost.String(), app)}, pod.dial, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the port closes and reopens with the application
			front := pod.listen(localhost.String())
			ended := make(chan error, 1)
			go func() { ended <- s.Serve(front) }()
			if got, err := pod.callHealth(front.Addr().String(), "any"); err != nil || got != healthpb.HealthCheckResponse_SERVING {
				t.Errorf("answer %s, %v", got, err)
			}
			if got, want := <-seen, asked.String()+" any"; got != want {
				t.Errorf("the application sees the user agent %q, want %q", got, want)
			}
			_ = front.Close()
			if err := <-ended; !errors.Is(err, net.ErrClosed) {
				t.Errorf("Serve() error = %v, want the end of the listener", err)
			}
		}
		s.Close()
	})
}
