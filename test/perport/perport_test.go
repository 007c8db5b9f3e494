package perport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"k8s.io/kubernetes/pkg/probe"

	"github.com/sonde-mesh/sonde/test/harness"
)

const (
	perPort = "per-port"
	unified = "unified"
)

func TestHTTPProbes(t *testing.T) {
	t.Parallel()
	s := newSeed(t, perPort, harness.Options{}, harness.ProxyOptions{})
	application := newWeb(t, app(s.inboundApp), app(s.other))
	inbound, other := fmt.Sprintf("/%d/metrics", s.inbound), fmt.Sprintf("/%d/metrics", s.other)
	host := func(port int) string { return net.JoinHostPort(address, itoa(port)) }
	s.poll("HTTP probes to be answered", limit, s.asksHTTP(inbound, timeout, probe.Success))
	<-application.requests

	tests := map[string]struct {
		path    string
		timeout time.Duration
		want    probe.Result
		seen    []seen // Host and Target
	}{
		"the inbound":     {inbound, timeout, probe.Success, []seen{{Host: host(s.inbound), Target: "/metrics"}}},
		"another port":    {other, timeout, probe.Success, []seen{{Host: host(s.other), Target: "/metrics"}}},
		"with a query":    {inbound + "?status=204&a=%2F", timeout, probe.Success, []seen{{Host: host(s.inbound), Target: "/metrics?status=204&a=%2F"}}},
		"500":             {inbound + "?status=500", timeout, probe.Failure, []seen{{Host: host(s.inbound), Target: "/metrics?status=500"}}},
		"a cut body":      {other + "?length=100", timeout, probe.Unknown, []seen{{Host: host(s.other), Target: "/metrics?length=100"}}},
		"slow":            {inbound + "?after=300ms", timeout, probe.Success, []seen{{Host: host(s.inbound), Target: "/metrics?after=300ms"}}},
		"an escaped path": {"/escaped%20", timeout, probe.Success, []seen{{Host: host(s.other), Target: "/a%2Fb//%41"}}},
		"redirect abroad": {inbound + "?to=http://elsewhere.example/", timeout, probe.Warning, []seen{{Host: host(s.inbound), Target: "/metrics?to=http://elsewhere.example/"}}},
		"relative redirect": {inbound + "?to=ok", timeout, probe.Success, []seen{
			{Host: host(s.inbound), Target: "/metrics?to=ok"}, {Host: host(s.inbound), Target: "/ok"},
		}},
		"absolute redirect, and a failure": {inbound + "?to=http://" + host(s.inbound) + "/x?status=503", timeout, probe.Failure, []seen{
			{Host: host(s.inbound), Target: "/metrics?to=http://" + host(s.inbound) + "/x?status=503"}, {Host: host(s.inbound), Target: "/x?status=503"},
		}},
		"redirect to the other port": {inbound + "?to=http://" + host(s.other) + "/x", timeout, probe.Success, []seen{
			{Host: host(s.inbound), Target: "/metrics?to=http://" + host(s.other) + "/x"}, {Host: host(s.other), Target: "/x"},
		}},
		"redirect to the port for probes": {inbound + "?to=" + s.url(inbound), timeout, probe.Failure, []seen{
			{Host: host(s.inbound), Target: "/metrics?to=" + s.url(inbound)},
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			must(t, s.asksHTTP(tc.path, tc.timeout, tc.want)(t.Context()))
			for _, want := range tc.seen {
				want.Method, want.UserAgent = http.MethodGet, "kube-probe/1.36"
				if diff := cmp.Diff(want, received(t, application.requests)); diff != "" {
					t.Errorf("the application got (-want +got):\n%s", diff)
				}
			}
		})
	}

	t.Run("too slow", func(t *testing.T) {
		must(t, s.asksHTTP(inbound+"?after=1m", 2*time.Second, probe.Failure)(t.Context()))
		received(t, application.requests)
		received(t, application.left) // nobody waits for the answer any more
	})
	for _, r := range []string{"POST " + inbound, "HEAD " + inbound, "GET /metrics", "GET /", "GET " + inbound + "/x", "GET /" + itoa(s.inbound)} {
		t.Run(r, func(t *testing.T) {
			method, path, _ := strings.Cut(r, " ")
			if got := s.status(t, method, path); got != http.StatusNotFound {
				t.Errorf("status %d, want 404", got)
			}
		})
	}
	if len(application.requests) > 0 {
		t.Errorf("the application got %+v", <-application.requests)
	}
}

func received[T any](t testing.TB, from <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-from:
	case <-time.After(limit):
		t.Fatal("nothing comes")
	}
	return got
}

func (s *seed) status(t testing.TB, method, path string) int {
	t.Helper()
	conn := s.connect(t, s.http)
	_, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", method, path)
	must(t, err)
	var version string
	var status int
	_, err = fmt.Fscan(conn, &version, &status)
	must(t, err)
	return status
}

// connect opens a connection to a port of the Dataplane, which is closed when the test ends, with a deadline.
func (s *seed) connect(t testing.TB, port int) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: limit}).DialContext(t.Context(), "tcp", net.JoinHostPort(address, itoa(port)))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(limit)))
	return conn
}

func TestTCPAndGRPCProbes(t *testing.T) {
	t.Parallel()
	s := newSeed(t, perPort, harness.Options{}, harness.ProxyOptions{})
	for _, port := range []int{s.tcp, s.grpc, s.only} {
		must(t, refused(port)(t.Context())) // there is no application yet
	}
	healthy := health.NewServer()
	healthy.SetServingStatus("bad", healthpb.HealthCheckResponse_NOT_SERVING)
	tcp, only := newSilent(t, app(s.tcp)), newSilent(t, app(s.only))
	grpcApp := newGRPC(t, app(s.grpc), healthy)

	follow := func() {
		t.Helper()
		s.poll("TCP probes to succeed", follows, asksTCP(s.tcp, probe.Success))
		s.poll("TCP probes of the port for TCP alone to succeed", follows, asksTCP(s.only, probe.Success))
		s.poll("TCP probes of gRPC to succeed", follows, asksTCP(s.grpc, probe.Success))
		s.poll("gRPC probes to succeed", follows, asksGRPC(s.grpc, "", probe.Success))
		for _, a := range []*application{tcp, only, grpcApp} {
			a.close()
		}
		s.poll("gRPC probes to fail", follows, asksGRPC(s.grpc, "", probe.Failure))
		for _, port := range []int{s.tcp, s.grpc, s.only} {
			s.poll("TCP probes to fail", follows, asksTCP(port, probe.Failure))
		}
		for _, a := range []*application{tcp, only, grpcApp} {
			a.open()
		}
		s.poll("gRPC probes to succeed again", follows+time.Second, asksGRPC(s.grpc, "", probe.Success))
		for _, port := range []int{s.tcp, s.grpc, s.only} {
			s.poll("TCP probes to succeed again", follows, asksTCP(port, probe.Success))
		}
	}
	t.Run("follow the application", func(*testing.T) { follow() })
	t.Run("gRPC verdicts", func(t *testing.T) {
		must(t, asksGRPC(s.grpc, "bad", probe.Failure)(t.Context()))
		must(t, asksGRPC(s.grpc, "unknown", probe.Failure)(t.Context()))
	})
	t.Run("another method", func(t *testing.T) { s.refusesOtherMethods(t) })
	t.Run("raw bytes", func(t *testing.T) {
		for _, port := range []int{s.tcp, s.only} {
			conn := s.connect(t, port)
			_, err := io.WriteString(conn, "DELETE / HTTP/1.1\r\nHost: x\r\n\r\n")
			must(t, err)
			_, _ = io.Copy(io.Discard, conn) // its end or a reset
		}
		if n := tcp.bytes.Load() + only.bytes.Load(); n > 0 {
			t.Errorf("%d bytes get to the applications", n)
		}
	})
	t.Run("without the control plane", func(*testing.T) {
		s.m.ControlPlane.Kill()
		follow()
	})
}

// refusesOtherMethods calls what is no health check.
func (s *seed) refusesOtherMethods(t *testing.T) {
	t.Helper()
	conn, err := grpc.NewClient(net.JoinHostPort(address, itoa(s.grpc)), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	must(t, conn.Invoke(ctx, healthpb.Health_Check_FullMethodName, &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckResponse{}))
	err = conn.Invoke(ctx, "/shop.Orders/Delete", &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckResponse{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("shop.Orders/Delete: %v, want Unimplemented", err)
	}
}

// TestModeFollows has the mode by the flag and by the label, which somebody changes.
func TestModeFollows(t *testing.T) {
	t.Parallel()
	s := newSeed(t, "", harness.Options{ControlPlaneArgs: []string{"--virtual-probes-mode=per-port"}}, harness.ProxyOptions{})
	newWeb(t, app(s.inboundApp), app(s.other))
	newSilent(t, app(s.tcp))
	inbound := fmt.Sprintf("/%d/metrics", s.inbound)
	answered := func() {
		t.Helper()
		s.poll("HTTP probes to be answered", limit, s.asksHTTP(inbound, timeout, probe.Success))
		s.poll("TCP probes to be answered", limit, asksTCP(s.tcp, probe.Success))
	}
	answered()
	must(t, s.p.WaitReady(t.Context()))

	s.put(unified)
	for _, port := range []int{s.http, s.tcp, s.grpc, s.only} {
		s.poll("the ports for probes to be closed", limit, refused(port))
	}
	must(t, s.p.WaitReady(t.Context()))
	for _, field := range []string{"probes", "tcpProbes"} {
		must(t, s.m.ControlPlane.Logged(`"level":"WARN"`, field, "deprecated"))
	}

	s.put("")
	answered()
	must(t, s.p.Agent.Terminate(t.Context()))
	must(t, s.p.RunAgent())
	answered()
}

// TestBesideATable has an agent that answers probes of a table, too: then it has a guard, and comes back if it dies.
func TestBesideATable(t *testing.T) {
	t.Parallel()
	const virtualPort = 9000 // of another address than those of the harness
	s := newSeed(t, perPort, harness.Options{}, harness.ProxyOptions{
		AgentArgs: []string{fmt.Sprintf("--virtual-probes-port=%d", virtualPort)},
		AgentEnv:  []string{"INSTANCE_IP=" + tableAddress, `KUMA_DATAPLANE_PROBES=[{"tcpSocket":{"port":22}}]`},
	})
	newWeb(t, app(s.inboundApp), app(s.other))
	newSilent(t, app(s.tcp))
	answered := func() {
		t.Helper()
		s.poll("HTTP probes to be answered", limit, s.asksHTTP(fmt.Sprintf("/%d/metrics", s.inbound), timeout, probe.Success))
		s.poll("TCP probes to be answered", limit, asksTCP(s.tcp, probe.Success))
		s.poll("the probe of the table to be answered", limit, func(ctx context.Context) error {
			_, err := s.m.Get(ctx, fmt.Sprintf("http://%s/tcp/22", net.JoinHostPort(tableAddress, itoa(virtualPort))))
			if e := (*harness.StatusError)(nil); !errors.As(err, &e) || e.Code != http.StatusServiceUnavailable {
				return fmt.Errorf("%w, want 503 for a port that is closed", err)
			}
			return nil
		})
	}
	answered()
	workers, err := s.p.Agent.Children(filepath.Base(programs.Agent))
	must(t, err)
	if len(workers) != 1 {
		t.Fatalf("workers %v, want one", workers)
	}
	must(t, syscall.Kill(workers[0], syscall.SIGKILL))
	s.poll("the agent to be another one", limit, func(context.Context) error {
		now, err := s.p.Agent.Children(filepath.Base(programs.Agent))
		if err == nil && (len(now) != 1 || now[0] == workers[0]) {
			err = fmt.Errorf("workers %v", now)
		}
		return err
	})
	answered()
}

// TestTableOnTheSamePort has an agent whose table has the port that its Dataplane has for HTTP probes: both are answered there, behind the guard.
func TestTableOnTheSamePort(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{perPort, unified} {
		t.Run(mode+" table", func(t *testing.T) {
			t.Parallel()
			s := newSeed(t, perPort, harness.Options{}, harness.ProxyOptions{
				AgentArgs: []string{"--virtual-probes-port=HTTP_PORT", "--virtual-probes-mode=" + mode},
				AgentEnv:  []string{"INSTANCE_IP=" + address, `KUMA_DATAPLANE_PROBES=[{"tcpSocket":{"port":22}},{"httpGet":{"port":23,"path":"/live"}}]`},
			})
			application := newWeb(t, app(s.inboundApp), app(s.other))
			written := fmt.Sprintf("/%d/metrics", s.inbound)
			s.poll("the probe of the Dataplane to be answered", limit, s.asksHTTP(written, timeout, probe.Success))
			must(t, s.asksHTTP(written+"?status=500", timeout, probe.Failure)(t.Context()))
			must(t, s.asksHTTP("/23/live", timeout, probe.Failure)(t.Context()))
			for _, path := range []string{"/23/live", "/tcp/22"} {
				if got := s.status(t, http.MethodGet, path); got != http.StatusServiceUnavailable {
					t.Errorf("%s of the table: status %d, want 503 for a port that is closed", path, got)
				}
			}
			if got := s.status(t, http.MethodGet, "/23/other"); got != http.StatusNotFound {
				t.Errorf("what neither has: status %d, want 404", got)
			}
			// Longer than any probe of the table may take.
			must(t, s.asksHTTP(written+"?after=2500ms", 10*time.Second, probe.Success)(t.Context()))
			for len(application.requests) > 0 {
				<-application.requests
			}
			must(t, s.p.WaitReady(t.Context()))

			s.yaml = strings.Replace(s.yaml, "path: "+written, "path: /elsewhere", 1)
			s.put(perPort)
			s.poll("the path to be answered no more", limit, s.asksHTTP(written, timeout, probe.Failure))
			must(t, s.asksHTTP("/elsewhere", timeout, probe.Success)(t.Context()))
			must(t, s.asksHTTP("/23/live", timeout, probe.Failure)(t.Context()))
		})
	}
}

// TestPortChangesProtocol has a port for either protocol, and then for gRPC alone.
func TestPortChangesProtocol(t *testing.T) {
	t.Parallel()
	s := newSeed(t, perPort, harness.Options{}, harness.ProxyOptions{})
	grpcApp := newGRPC(t, app(s.grpc), health.NewServer())
	either := s.yaml
	alone := strings.Replace(either, fmt.Sprintf("- port: %d\n", s.grpc), fmt.Sprintf("- {port: %d, protocol: grpc}\n", s.grpc), 1)
	for _, yaml := range []string{either, alone, either} {
		s.yaml = yaml
		s.put(perPort)
		s.poll("gRPC probes to succeed", limit, asksGRPC(s.grpc, "", probe.Success))
		grpcApp.close()
		if yaml == either {
			s.poll("the port to be closed", limit, refused(s.grpc))
		} else {
			s.poll("the port to stay open", limit, asksTCP(s.grpc, probe.Success))
		}
		grpcApp.open()
	}
	must(t, s.p.WaitReady(t.Context()))
}

// TestProbesWhileDraining has a request that holds the drain up.
func TestProbesWhileDraining(t *testing.T) {
	t.Parallel()
	s := newSeed(t, perPort, harness.Options{MeshYAML: harness.MeshYAML("PERMISSIVE")}, harness.ProxyOptions{})
	application := newWeb(t, app(s.inboundApp), app(s.other))
	newSilent(t, app(s.tcp))
	newGRPC(t, app(s.grpc), health.NewServer())
	answered := func(within time.Duration) {
		t.Helper()
		s.poll("HTTP probes to be answered", within, s.asksHTTP(fmt.Sprintf("/%d/metrics", s.other), timeout, probe.Success))
		s.poll("TCP probes to be answered", within, asksTCP(s.tcp, probe.Success))
		s.poll("gRPC probes to be answered", within, asksGRPC(s.grpc, "", probe.Success))
	}
	answered(limit)
	received(t, application.requests)

	held := s.connect(t, s.inbound)
	_, err := io.WriteString(held, "GET /x?after=6s HTTP/1.1\r\nHost: busybox\r\nConnection: close\r\n\r\n")
	must(t, err)
	received(t, application.requests)
	must(t, syscall.Kill(s.p.Agent.PID(), syscall.SIGTERM))
	s.poll("the drain to begin", limit, func(context.Context) error { return s.p.Agent.Logged("drain begins") })
	for range 5 {
		answered(timeout)
		<-time.After(100 * time.Millisecond)
	}
	if err := s.p.Agent.Logged("drain done"); err == nil {
		t.Error("the drain was over before the probes were")
	}
	answer, err := io.ReadAll(held)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200") {
		t.Errorf("the request got %q, %v", answer, err)
	}
	must(t, s.p.Agent.Terminate(t.Context()))
	for _, port := range []int{s.http, s.tcp, s.grpc, s.only} {
		must(t, refused(port)(t.Context()))
	}
}

func TestUnifiedHasNoPorts(t *testing.T) {
	t.Parallel()
	s := newSeed(t, "", harness.Options{}, harness.ProxyOptions{})
	newWeb(t, app(s.inboundApp), app(s.other))
	newSilent(t, app(s.tcp))
	for range 12 { // more than a period of the agent
		for _, port := range []int{s.http, s.tcp, s.grpc, s.only} {
			must(t, refused(port)(t.Context()))
		}
		<-time.After(100 * time.Millisecond)
	}
	must(t, s.m.ControlPlane.Logged(`"level":"WARN"`, "tcpProbes", "deprecated"))
}
