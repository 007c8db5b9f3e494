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

	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
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
	must.Poll(t, "HTTP probes to be answered", s.asksHTTP(inbound, timeout, probe.Success))
	<-application.requests

	tests := map[string]struct {
		path    string
		timeout time.Duration
		want    probe.Result
		seen    []seen // Host and Target of the requests
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
		"absolute redirect to a failure": {inbound + "?to=http://" + host(s.inbound) + "/x?status=503", timeout, probe.Failure, []seen{
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
			must.Do(t, s.asksHTTP(tc.path, tc.timeout, tc.want)(t.Context()))
			for _, want := range tc.seen {
				want.Method, want.UserAgent = http.MethodGet, "kube-probe/1.36"
				if diff := cmp.Diff(want, received(t, application.requests)); diff != "" {
					t.Errorf("the application got (-want +got):\n%s", diff)
				}
			}
		})
	}

	t.Run("too slow", func(t *testing.T) {
		must.Do(t, s.asksHTTP(inbound+"?after=1m", 2*time.Second, probe.Failure)(t.Context()))
		received(t, application.requests)
		received(t, application.left) // the client disconnects
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
	case <-wait.Context(t).Done():
		t.Fatal("nothing comes")
	}
	return got
}

func (s *seed) status(t testing.TB, method, path string) int {
	t.Helper()
	conn := s.connect(t, s.http)
	_, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", method, path)
	must.Do(t, err)
	var version string
	var status int
	_, err = fmt.Fscan(conn, &version, &status)
	must.Do(t, err)
	return status
}

// connect opens a connection with a deadline to a port of the Dataplane. The end of the test closes it.
func (s *seed) connect(t testing.TB, port int) net.Conn {
	t.Helper()
	return must.Connect(t, net.JoinHostPort(address, itoa(port)))
}

func TestTCPAndGRPCProbes(t *testing.T) {
	t.Parallel()
	s := newSeed(t, perPort, harness.Options{}, harness.ProxyOptions{})
	for _, port := range []int{s.tcp, s.grpc, s.only} {
		must.Do(t, refused(port)(t.Context())) // no application listens yet
	}
	healthy := health.NewServer()
	healthy.SetServingStatus("bad", healthpb.HealthCheckResponse_NOT_SERVING)
	tcp, only := newSilent(t, app(s.tcp)), newSilent(t, app(s.only))
	grpcApp := newGRPC(t, app(s.grpc), healthy)

	follow := func() {
		t.Helper()
		must.Poll(t, "TCP probes to succeed", asksTCP(s.tcp, probe.Success))
		must.Poll(t, "TCP probes of the port for TCP alone to succeed", asksTCP(s.only, probe.Success))
		must.Poll(t, "TCP probes of gRPC to succeed", asksTCP(s.grpc, probe.Success))
		must.Poll(t, "gRPC probes to succeed", asksGRPC(s.grpc, "", probe.Success))
		for _, a := range []*application{tcp, only, grpcApp} {
			a.close()
		}
		must.Poll(t, "gRPC probes to fail", asksGRPC(s.grpc, "", probe.Failure))
		for _, port := range []int{s.tcp, s.grpc, s.only} {
			must.Poll(t, "TCP probes to fail", asksTCP(port, probe.Failure))
		}
		for _, a := range []*application{tcp, only, grpcApp} {
			a.open()
		}
		must.Poll(t, "gRPC probes to succeed again", asksGRPC(s.grpc, "", probe.Success))
		for _, port := range []int{s.tcp, s.grpc, s.only} {
			must.Poll(t, "TCP probes to succeed again", asksTCP(port, probe.Success))
		}
	}
	t.Run("follow the application", func(*testing.T) { follow() })
	t.Run("gRPC verdicts", func(t *testing.T) {
		must.Do(t, asksGRPC(s.grpc, "bad", probe.Failure)(t.Context()))
		must.Do(t, asksGRPC(s.grpc, "unknown", probe.Failure)(t.Context()))
	})
	t.Run("another method", func(t *testing.T) { s.refusesOtherMethods(t) })
	t.Run("raw bytes", func(t *testing.T) {
		for _, port := range []int{s.tcp, s.only} {
			conn := s.connect(t, port)
			_, err := io.WriteString(conn, "DELETE / HTTP/1.1\r\nHost: x\r\n\r\n")
			must.Do(t, err)
			_, _ = io.Copy(io.Discard, conn) // ended by FIN or reset
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

// refusesOtherMethods calls methods other than health checks.
func (s *seed) refusesOtherMethods(t *testing.T) {
	t.Helper()
	conn, err := grpc.NewClient(net.JoinHostPort(address, itoa(s.grpc)), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must.Do(t, err)
	defer func() { _ = conn.Close() }()
	ctx := wait.Context(t)
	must.Do(t, conn.Invoke(ctx, healthpb.Health_Check_FullMethodName, &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckResponse{}))
	err = conn.Invoke(ctx, "/shop.Orders/Delete", &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckResponse{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("shop.Orders/Delete: %v, want Unimplemented", err)
	}
}

// TestModeFollows sets the mode by flag and by label, and changes the label.
func TestModeFollows(t *testing.T) {
	t.Parallel()
	s := newSeed(t, "", harness.Options{ControlPlaneArgs: []string{"--virtual-probes-mode=per-port"}}, harness.ProxyOptions{})
	newWeb(t, app(s.inboundApp), app(s.other))
	newSilent(t, app(s.tcp))
	inbound := fmt.Sprintf("/%d/metrics", s.inbound)
	answered := func() {
		t.Helper()
		must.Poll(t, "HTTP probes to be answered", s.asksHTTP(inbound, timeout, probe.Success))
		must.Poll(t, "TCP probes to be answered", asksTCP(s.tcp, probe.Success))
	}
	answered()
	must.Do(t, s.p.WaitReady(t.Context()))

	s.put(unified)
	for _, port := range []int{s.http, s.tcp, s.grpc, s.only} {
		must.Poll(t, "the ports for probes to be closed", refused(port))
	}
	must.Do(t, s.p.WaitReady(t.Context()))
	for _, field := range []string{"probes", "tcpProbes"} {
		must.Do(t, s.m.ControlPlane.Logged(`"level":"WARN"`, field, "deprecated"))
	}

	s.put("")
	answered()
	must.Do(t, s.p.Agent.Terminate(t.Context()))
	must.Do(t, s.p.RunAgent())
	answered()
}

// TestBesideATable has an agent that also answers probes of a table: it runs behind a guard, and is restarted if it
// dies.
func TestBesideATable(t *testing.T) {
	t.Parallel()
	const virtualPort = 9000 // on another address than the harness uses
	s := newSeed(t, perPort, harness.Options{}, harness.ProxyOptions{
		AgentArgs: []string{fmt.Sprintf("--virtual-probes-port=%d", virtualPort)},
		AgentEnv:  []string{"INSTANCE_IP=" + tableAddress, `KUMA_DATAPLANE_PROBES=[{"tcpSocket":{"port":22}}]`},
	})
	newWeb(t, app(s.inboundApp), app(s.other))
	newSilent(t, app(s.tcp))
	answered := func() {
		t.Helper()
		must.Poll(t, "HTTP probes to be answered", s.asksHTTP(fmt.Sprintf("/%d/metrics", s.inbound), timeout, probe.Success))
		must.Poll(t, "TCP probes to be answered", asksTCP(s.tcp, probe.Success))
		must.Poll(t, "the probe of the table to be answered", func(ctx context.Context) error {
			_, err := s.m.Get(ctx, fmt.Sprintf("http://%s/tcp/22", net.JoinHostPort(tableAddress, itoa(virtualPort))))
			if e := (*harness.StatusError)(nil); !errors.As(err, &e) || e.Code != http.StatusServiceUnavailable {
				return fmt.Errorf("%w, want 503 for a port that is closed", err)
			}
			return nil
		})
	}
	answered()
	workers, err := s.p.Agent.Children(filepath.Base(programs.Agent))
	must.Do(t, err)
	if len(workers) != 1 {
		t.Fatalf("workers %v, want one", workers)
	}
	must.Do(t, syscall.Kill(workers[0], syscall.SIGKILL))
	must.Poll(t, "another agent to run", func(context.Context) error {
		now, err := s.p.Agent.Children(filepath.Base(programs.Agent))
		if err == nil && (len(now) != 1 || now[0] == workers[0]) {
			err = fmt.Errorf("workers %v", now)
		}
		return err
	})
	answered()
}

// TestTableOnTheSamePort has an agent whose table uses the same port as its Dataplane's HTTP probes: the agent
// answers both there, behind the guard.
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
			must.Poll(t, "the probe of the Dataplane to be answered", s.asksHTTP(written, timeout, probe.Success))
			must.Do(t, s.asksHTTP(written+"?status=500", timeout, probe.Failure)(t.Context()))
			must.Do(t, s.asksHTTP("/23/live", timeout, probe.Failure)(t.Context()))
			for _, path := range []string{"/23/live", "/tcp/22"} {
				if got := s.status(t, http.MethodGet, path); got != http.StatusServiceUnavailable {
					t.Errorf("%s of the table: status %d, want 503 for a port that is closed", path, got)
				}
			}
			if got := s.status(t, http.MethodGet, "/23/other"); got != http.StatusNotFound {
				t.Errorf("path of neither: status %d, want 404", got)
			}
			// longer than the timeout of any probe of the table
			must.Do(t, s.asksHTTP(written+"?after=2500ms", 10*time.Second, probe.Success)(t.Context()))
			for len(application.requests) > 0 {
				<-application.requests
			}
			must.Do(t, s.p.WaitReady(t.Context()))

			s.yaml = strings.Replace(s.yaml, "path: "+written, "path: /elsewhere", 1)
			s.put(perPort)
			must.Poll(t, "the path to be answered no more", s.asksHTTP(written, timeout, probe.Failure))
			must.Do(t, s.asksHTTP("/elsewhere", timeout, probe.Success)(t.Context()))
			must.Do(t, s.asksHTTP("/23/live", timeout, probe.Failure)(t.Context()))
		})
	}
}

// TestPortChangesProtocol has a port for either protocol, and later only for gRPC.
func TestPortChangesProtocol(t *testing.T) {
	t.Parallel()
	s := newSeed(t, perPort, harness.Options{}, harness.ProxyOptions{})
	grpcApp := newGRPC(t, app(s.grpc), health.NewServer())
	either := s.yaml
	alone := strings.Replace(either, fmt.Sprintf("- port: %d\n", s.grpc), fmt.Sprintf("- {port: %d, protocol: grpc}\n", s.grpc), 1)
	for _, yaml := range []string{either, alone, either} {
		s.yaml = yaml
		s.put(perPort)
		must.Poll(t, "gRPC probes to succeed", asksGRPC(s.grpc, "", probe.Success))
		grpcApp.close()
		if yaml == either {
			must.Poll(t, "the port to be closed", refused(s.grpc))
		} else {
			must.Poll(t, "the port to stay open", asksTCP(s.grpc, probe.Success))
		}
		grpcApp.open()
	}
	must.Do(t, s.p.WaitReady(t.Context()))
}

// TestProbesWhileDraining has a request that keeps the drain open.
func TestProbesWhileDraining(t *testing.T) {
	t.Parallel()
	s := newSeed(t, perPort, harness.Options{MeshYAML: harness.MeshYAML("PERMISSIVE")}, harness.ProxyOptions{})
	application := newWeb(t, app(s.inboundApp), app(s.other))
	newSilent(t, app(s.tcp))
	newGRPC(t, app(s.grpc), health.NewServer())
	answered := func() {
		t.Helper()
		must.Poll(t, "HTTP probes to be answered", s.asksHTTP(fmt.Sprintf("/%d/metrics", s.other), timeout, probe.Success))
		must.Poll(t, "TCP probes to be answered", asksTCP(s.tcp, probe.Success))
		must.Poll(t, "gRPC probes to be answered", asksGRPC(s.grpc, "", probe.Success))
	}
	answered()
	received(t, application.requests)

	held := s.connect(t, s.inbound)
	_, err := io.WriteString(held, "GET /x?after=6s HTTP/1.1\r\nHost: busybox\r\nConnection: close\r\n\r\n")
	must.Do(t, err)
	received(t, application.requests)
	must.Do(t, syscall.Kill(s.p.Agent.PID(), syscall.SIGTERM))
	must.Poll(t, "the drain to begin", func(context.Context) error { return s.p.Agent.Logged("drain begins") })
	for range 5 {
		answered()
		<-time.After(100 * time.Millisecond)
	}
	if err := s.p.Agent.Logged("drain done"); err == nil {
		t.Error("the drain was over before the probes were")
	}
	answer, err := io.ReadAll(held)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200") {
		t.Errorf("the request got %q, %v", answer, err)
	}
	must.Do(t, s.p.Agent.Terminate(t.Context()))
	for _, port := range []int{s.http, s.tcp, s.grpc, s.only} {
		must.Do(t, refused(port)(t.Context()))
	}
}

func TestUnifiedHasNoPorts(t *testing.T) {
	t.Parallel()
	s := newSeed(t, "", harness.Options{}, harness.ProxyOptions{})
	newWeb(t, app(s.inboundApp), app(s.other))
	newSilent(t, app(s.tcp))
	for range 12 { // longer than a period of the agent
		for _, port := range []int{s.http, s.tcp, s.grpc, s.only} {
			must.Do(t, refused(port)(t.Context()))
		}
		<-time.After(100 * time.Millisecond)
	}
	must.Do(t, s.m.ControlPlane.Logged(`"level":"WARN"`, "tcpProbes", "deprecated"))
}
