package probe_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

const checkTimeout = 2 * time.Second

// check makes one check of a probe.
func (p *pod) check(of mesh.Probe) probe.Outcome {
	p.t.Helper()
	c := probe.NewCheck(of, localhost, checkTimeout, p.dial)
	defer c.End()
	return c.Ask(wait.Context(p.t))
}

func TestCheckOverHTTP(t *testing.T) {
	answer := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte("SECRET"))
		}
	}
	tests := map[string]struct {
		app    http.HandlerFunc
		want   probe.Outcome
		reason string
		asked  int32
	}{
		"200": {answer(200), probe.Outcome{Verdict: "success", Passed: true}, "", 1},
		"500": {answer(500), probe.Outcome{Verdict: "failure", Class: probe.HTTPStatus}, "HTTP probe failed with statuscode: 500", 1},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://SECRET.example.com/", http.StatusFound)
		}, probe.Outcome{Verdict: "warning", Passed: true, Class: probe.Redirect}, "302", 1},
		"it hangs":    {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, probe.Outcome{Verdict: "failure", Class: probe.Timeout, Took: checkTimeout}, "context deadline exceeded", 1},
		"body is cut": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "10") }, probe.Outcome{Verdict: "errored", Discarded: true, Class: probe.Failed}, "unexpected EOF", 3},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			var asked atomic.Int32
			pod := newPod(t)
			port := pod.web(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				tc.app(w, r)
			}, nil)
			got := pod.check(mesh.Probe{HTTPGet: &mesh.HTTPGetProbe{Path: "/", Port: port}})
			if !strings.Contains(got.Reason, tc.reason) || strings.Contains(got.Reason, "SECRET") || (got.Reason == "") != (tc.reason == "") {
				t.Errorf("reason = %q, want %q", got.Reason, tc.reason)
			}
			if got.Reason = ""; got != tc.want || asked.Load() != tc.asked {
				t.Errorf("outcome = %+v after %d requests, want %+v after %d", got, asked.Load(), tc.want, tc.asked)
			}
		})
	}
}

// TestCheckIsThatOfTheKubelet checks the request that the application gets.
func TestCheckIsThatOfTheKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got *http.Request
		pod := newPod(t)
		port := pod.web(func(_ http.ResponseWriter, r *http.Request) { got = r }, &tls.Config{Certificates: []tls.Certificate{expired(t)}})
		outcome := pod.check(mesh.Probe{HTTPGet: &mesh.HTTPGetProbe{
			Path: "/a?b=c", Port: port, Scheme: mesh.SchemeHTTPS, HTTPHeaders: []mesh.HTTPHeader{{Name: "Host", Value: "db.example.com"}, {Name: "A", Value: "1"}, {Name: "A", Value: "2"}},
		}})
		if !outcome.Passed {
			t.Fatalf("outcome = %+v", outcome)
		}
		if got.Method != http.MethodGet || got.RequestURI != "/a?b=c" || got.Host != "db.example.com" || got.UserAgent() != "kube-probe/sonde" || !got.Close ||
			len(got.Header["A"]) != 2 || got.Header.Get("Accept") != "*/*" || got.Header.Get("Accept-Encoding") != "" {
			t.Errorf("%s %s of %s, close %v, headers %v", got.Method, got.RequestURI, got.Host, got.Close, got.Header)
		}
	})
}

func TestCheckOverTCPAndGRPC(t *testing.T) {
	toTCP := func(port int32) mesh.Probe { return mesh.Probe{TCPSocket: &mesh.TCPSocketProbe{Port: port}} }
	toGRPC := func(port int32) mesh.Probe { return mesh.Probe{GRPC: &mesh.GRPCProbe{Port: port, Service: "foo"}} }
	open := func(p *pod) mesh.Probe { return toTCP(int32(port(p.listen(localhost.String())))) }
	full := func(p *pod) mesh.Probe {
		of := open(p)
		for p.check(of).Passed { // until the backlog is full
		}
		return of
	}
	says := func(answer healthpb.HealthCheckResponse_ServingStatus, code codes.Code) func(*pod) mesh.Probe {
		return func(p *pod) mesh.Probe { return toGRPC(p.serveGRPC(says(answer, status.Error(code, "SECRET")))) }
	}
	tests := map[string]struct {
		probe  func(*pod) mesh.Probe
		passed bool
		class  probe.Class
		reason string // the end of the reason; "" for any
		took   time.Duration
	}{
		"a port that is open":   {open, true, "", "", 0},
		"a port that is closed": {func(p *pod) mesh.Probe { return toTCP(p.closedPort()) }, false, probe.ConnectionRefused, "connection refused", 0},
		"a port that is full":   {full, false, probe.Timeout, "", checkTimeout},
		"SERVING":               {says(healthpb.HealthCheckResponse_SERVING, codes.OK), true, "", "", 0},
		"NOT_SERVING":           {says(healthpb.HealthCheckResponse_NOT_SERVING, codes.OK), false, probe.NotServing, "", 0},
		"an unknown service":    {says(0, codes.NotFound), false, probe.Failed, "health rpc probe failed: the application responded with NotFound, unknown service", 0},
		"another code":          {says(0, codes.Internal), false, probe.Failed, "health rpc probe failed: the application responded with Internal", 0},
		"a closed port":         {func(p *pod) mesh.Probe { return toGRPC(p.closedPort()) }, false, probe.Timeout, "", checkTimeout},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			pod := newPod(t)
			got := pod.check(tc.probe(pod))
			if got.Passed != tc.passed || got.Discarded || got.Class != tc.class || !strings.HasSuffix(got.Reason, tc.reason) || got.Took != tc.took {
				t.Errorf("outcome = %+v, want passed %v, class %q, reason %q after %s", got, tc.passed, tc.class, tc.reason, tc.took)
			}
		})
	}
}

// TestAgentThatCannotCheck checks that a lack of file descriptors says nothing about the application.
func TestAgentThatCannotCheck(t *testing.T) {
	for name, of := range map[string]mesh.Probe{
		"httpGet":   {HTTPGet: &mesh.HTTPGetProbe{Path: "/", Port: 1}},
		"tcpSocket": {TCPSocket: &mesh.TCPSocketProbe{Port: 1}},
		"grpc":      {GRPC: &mesh.GRPCProbe{Port: 1}},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			c := probe.NewCheck(of, localhost, checkTimeout, func(context.Context, string, string) (net.Conn, error) { return nil, syscall.EMFILE })
			defer c.End()
			got := c.Ask(t.Context())
			if want := "the agent cannot check: "; got.Verdict != "errored" || !got.Discarded || got.Class != probe.AgentFault || !strings.HasPrefix(got.Reason, want) {
				t.Errorf("outcome = %+v, want it discarded, class %q, reason %q", got, probe.AgentFault, want)
			}
		})
	}
}

func TestCheckThatIsCancelledIsDiscarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		port := pod.web(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c := probe.NewCheck(mesh.Probe{HTTPGet: &mesh.HTTPGetProbe{Path: "/", Port: port}}, localhost, time.Minute, pod.dial)
		defer c.End()
		if got := c.Ask(ctx); !got.Discarded || got.Passed || got.Took != time.Second {
			t.Errorf("outcome = %+v", got)
		}
	})
}
