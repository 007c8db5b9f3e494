package probe_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

var localhost = netip.MustParseAddr("127.0.0.1")

// hangs is the timeout of a check that is to run into it. That of one that is to be answered is longer: how long an answer takes depends on the machine.
const hangs, answers = 2 * time.Second, 10 * time.Second

// settledCheck makes checks until the agent was not too busy for one. before is called before each.
func settledCheck(t testing.TB, p mesh.Probe, timeout time.Duration, before func()) (outcome probe.Outcome) {
	t.Helper()
	for range tries {
		before()
		if outcome = check(t, p, timeout); outcome.Class != probe.AgentFault {
			break
		}
	}
	return outcome
}

// check makes one check of a probe.
func check(t testing.TB, p mesh.Probe, timeout time.Duration) probe.Outcome {
	t.Helper()
	c := probe.NewCheck(p, localhost, timeout)
	defer c.End()
	return c.Ask(t.Context())
}

func TestCheckOverHTTP(t *testing.T) {
	answer := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte("SECRET"))
		}
	}
	tests := map[string]struct {
		app     http.HandlerFunc
		timeout time.Duration
		want    probe.Outcome
		reason  string
		asked   int32
	}{
		"200": {answer(200), answers, probe.Outcome{Verdict: "success", Passed: true}, "", 1},
		"500": {answer(500), answers, probe.Outcome{Verdict: "failure", Class: probe.HTTPStatus}, "HTTP probe failed with statuscode: 500", 1},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://SECRET.example.com/", http.StatusFound)
		}, answers, probe.Outcome{Verdict: "warning", Passed: true, Class: probe.Redirect}, "302", 1},
		"it hangs":    {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, hangs, probe.Outcome{Verdict: "failure", Class: probe.Timeout}, "context deadline exceeded", 1},
		"body is cut": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "10") }, answers, probe.Outcome{Verdict: "errored", Discarded: true, Class: probe.Failed}, "unexpected EOF", 3},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int32
			_, port := httpServer(t, func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				tc.app(w, r)
			}, nil)
			got := settledCheck(t, mesh.Probe{HTTPGet: &mesh.HTTPGetProbe{Path: "/", Port: port}}, tc.timeout, func() { asked.Store(0) })
			if !strings.Contains(got.Reason, tc.reason) || strings.Contains(got.Reason, "SECRET") || (got.Reason == "") != (tc.reason == "") {
				t.Errorf("reason = %q, want %q", got.Reason, tc.reason)
			}
			if got.Took <= 0 || got.Took > 10*time.Second {
				t.Errorf("it took %s", got.Took)
			}
			if got.Reason, got.Took = "", 0; got != tc.want || asked.Load() != tc.asked {
				t.Errorf("outcome = %+v after %d requests, want %+v after %d", got, asked.Load(), tc.want, tc.asked)
			}
		})
	}
}

// TestCheckIsThatOfTheKubelet looks at what the application gets.
func TestCheckIsThatOfTheKubelet(t *testing.T) {
	var got *http.Request
	_, port := httpServer(t, func(_ http.ResponseWriter, r *http.Request) { got = r }, &tls.Config{Certificates: []tls.Certificate{expired(t)}})
	p := mesh.Probe{HTTPGet: &mesh.HTTPGetProbe{
		Path: "/a?b=c", Port: port, Scheme: mesh.SchemeHTTPS, HTTPHeaders: []mesh.HTTPHeader{{Name: "Host", Value: "db.example.com"}, {Name: "A", Value: "1"}, {Name: "A", Value: "2"}},
	}}
	if outcome := check(t, p, 10*time.Second); !outcome.Passed {
		t.Fatalf("outcome = %+v", outcome)
	}
	if got.Method != http.MethodGet || got.RequestURI != "/a?b=c" || got.Host != "db.example.com" || got.UserAgent() != "kube-probe/sonde" || !got.Close ||
		len(got.Header["A"]) != 2 || got.Header.Get("Accept") != "*/*" || got.Header.Get("Accept-Encoding") != "" {
		t.Errorf("%s %s of %s, close %v, headers %v", got.Method, got.RequestURI, got.Host, got.Close, got.Header)
	}
}

func TestCheckOverTCPAndGRPC(t *testing.T) {
	closed := listen(t, "127.0.0.1")
	nobody := int32(port(closed))
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	open, serving, notServing := listen(t, "127.0.0.1"), listen(t, "127.0.0.1"), listen(t, "127.0.0.1")
	unknown, broken := listen(t, "127.0.0.1"), listen(t, "127.0.0.1")
	serveGRPC(t, unknown, says(0, status.Error(codes.NotFound, "SECRET")))
	serveGRPC(t, broken, says(0, status.Error(codes.Internal, "SECRET")))
	serveGRPC(t, serving, says(healthpb.HealthCheckResponse_SERVING, nil))
	serveGRPC(t, notServing, says(healthpb.HealthCheckResponse_NOT_SERVING, nil))
	tests := map[string]struct {
		probe   mesh.Probe
		timeout time.Duration
		passed  bool
		class   probe.Class
		reason  string // its end, if it matters
	}{
		"a port that is open":   {mesh.Probe{TCPSocket: &mesh.TCPSocketProbe{Port: int32(port(open))}}, answers, true, "", ""},
		"a port that is closed": {mesh.Probe{TCPSocket: &mesh.TCPSocketProbe{Port: nobody}}, answers, false, probe.ConnectionRefused, "connection refused"},
		"SERVING":               {mesh.Probe{GRPC: &mesh.GRPCProbe{Port: int32(port(serving))}}, answers, true, "", ""},
		"NOT_SERVING":           {mesh.Probe{GRPC: &mesh.GRPCProbe{Port: int32(port(notServing))}}, answers, false, probe.NotServing, ""},
		"an unknown service":    {mesh.Probe{GRPC: &mesh.GRPCProbe{Port: int32(port(unknown)), Service: "foo"}}, answers, false, probe.Failed, "health rpc probe failed: the application answers NotFound, it does not know the service that the probe asks for"},
		"another code":          {mesh.Probe{GRPC: &mesh.GRPCProbe{Port: int32(port(broken))}}, answers, false, probe.Failed, "health rpc probe failed: the application answers Internal"},
		"nobody serves gRPC":    {mesh.Probe{GRPC: &mesh.GRPCProbe{Port: nobody}}, hangs, false, probe.Timeout, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := settledCheck(t, tc.probe, tc.timeout, func() {}); got.Passed != tc.passed || got.Discarded || got.Class != tc.class || !strings.HasSuffix(got.Reason, tc.reason) {
				t.Errorf("outcome = %+v, want passed %v, class %q, reason %q", got, tc.passed, tc.class, tc.reason)
			}
		})
	}
}

func TestCheckThatIsCancelledIsDiscarded(t *testing.T) {
	_, port := httpServer(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, nil)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	c := probe.NewCheck(mesh.Probe{HTTPGet: &mesh.HTTPGetProbe{Path: "/", Port: port}}, localhost, time.Minute)
	defer c.End()
	if got := c.Ask(ctx); !got.Discarded || got.Passed {
		t.Errorf("outcome = %+v", got)
	}
}

// BenchmarkCheck has the cost of a check and of the application's answer.
func BenchmarkCheck(b *testing.B) {
	_, web := httpServer(b, func(http.ResponseWriter, *http.Request) {}, nil)
	db := listen(b, "127.0.0.1")
	serveGRPC(b, db, says(healthpb.HealthCheckResponse_SERVING, nil))
	for name, p := range map[string]mesh.Probe{
		"httpGet":   {HTTPGet: &mesh.HTTPGetProbe{Path: "/healthz", Port: web}},
		"tcpSocket": {TCPSocket: &mesh.TCPSocketProbe{Port: web}},
		"grpc":      {GRPC: &mesh.GRPCProbe{Port: int32(db.Addr().(*net.TCPAddr).Port)}},
	} {
		b.Run(name, func(b *testing.B) {
			c := probe.NewCheck(p, localhost, 10*time.Second)
			defer c.End()
			b.ReportAllocs()
			for b.Loop() {
				if got := c.Ask(b.Context()); !got.Passed {
					b.Fatalf("outcome = %+v", got)
				}
			}
		})
	}
}
