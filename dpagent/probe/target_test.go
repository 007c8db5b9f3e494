package probe_test

import (
	"bufio"
	"errors"
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

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// serveTarget serves one target at a path, and returns a function that sends a request.
func (p *pod) serveTarget(podIP, path string, target probe.Target) func(request string) (status int, body string) {
	p.t.Helper()
	address := p.serve(probe.Options{PodIP: netip.MustParseAddr(podIP), Target: only(path, target)})
	return func(request string) (int, string) {
		p.t.Helper()
		c := p.connect(address)
		if _, err := io.WriteString(c, request); err != nil {
			p.t.Fatal(err)
		}
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			p.t.Fatal(err)
		}
		defer func() { _ = answer.Body.Close() }()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			body = append(body, " ("+err.Error()+")"...)
		}
		return answer.StatusCode, string(body)
	}
}

// only returns an Options.Target with a single path.
func only(path string, target probe.Target) func(string) (probe.Target, bool) {
	return func(asked string) (probe.Target, bool) { return target, asked == path }
}

func at(ip string, port int32) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(ip), uint16(port))
}

func TestTargets(t *testing.T) {
	longest := "/" + strings.Repeat("a", 2047) // maximum length in a Dataplane
	tests := map[string]struct {
		ip      string
		path    string // path of the target
		request string
		want    string // target that the application gets
	}{
		"a path":              {"127.0.0.1", "/metrics", "/8080/metrics", "/metrics"},
		"IPv6":                {"::1", "/metrics", "/8080/metrics", "/metrics"},
		"a query":             {"127.0.0.1", "/metrics", "/8080/metrics?a=b&c=%2F%zz", "/metrics?a=b&c=%2F%zz"},
		"an escaped path":     {"127.0.0.1", "/a%2Fb", "/x", "/a%2Fb"},
		"two slashes":         {"127.0.0.1", "//a/../b", "/x", "//a/../b"},
		"only a slash":        {"127.0.0.1", "/", "/x", "/"},
		"a wrong escape":      {"127.0.0.1", "/%zz", "/x", "/%25zz"},
		"a user in the path":  {"127.0.0.1", "/u@127.0.0.2:1/", "/x", "/u@127.0.0.2:1/"},
		"the longest paths":   {"127.0.0.1", longest, longest, longest},
		"a query with a path": {"127.0.0.1", "/m", "/x?/..//@h", "/m?/..//@h"},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			pod := newPod(t)
			app := pod.apply(tc.ip, func(c net.Conn) { _, _ = io.WriteString(c, ok) })
			host := net.JoinHostPort(tc.ip, "8080")
			path, _, _ := strings.Cut(tc.request, "?")
			ask := pod.serveTarget(tc.ip, path, probe.Target{Asked: at(tc.ip, 8080), Application: at(tc.ip, app.port), Path: tc.path})
			status, body := ask("GET " + tc.request + " HTTP/1.1\r\nHost: elsewhere\r\nUser-Agent: kube-probe/1.36\r\nCookie: a=b\r\n" +
				"X-Original-URL: /admin\r\n\r\n")
			if status != http.StatusOK || body != "success\n" {
				t.Fatalf("answer %d %q, want success", status, body)
			}
			want := []string{"GET " + tc.want + " HTTP/1.1\r\nHost: " + host + "\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\nConnection: close\r\n\r\n"}
			got, _ := app.requests()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the application got (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTargetsBesideATable has the same paths in the table and as targets: the table takes precedence.
func TestTargetsBesideATable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		table, written := pod.answer(ok), pod.answer(ok)
		p := get(table.port, "/live")
		target := probe.Target{Asked: at("127.0.0.1", 8080), Application: at("127.0.0.1", written.port), Path: "/written"}
		address := pod.serve(probe.Options{Table: mesh.ProbeTable{p}, Target: func(path string) (probe.Target, bool) {
			return target, path == "/x" || path == p.VirtualPath()
		}})
		for path, want := range map[string]string{p.VirtualPath(): "success", "/x": "success", "/y": "failure"} {
			if verdict, text := pod.probe(address, path, ""); verdict != want {
				t.Errorf("%s: %s %q, want %s", path, verdict, text, want)
			}
		}
		for _, app := range []*application{table, written} {
			if heads, _ := app.requests(); len(heads) != 1 {
				t.Errorf("an application got %q, want one request", heads)
			}
		}
	})
}

func TestRequestsWithoutATarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		app := pod.answer(ok)
		ask := pod.serveTarget("127.0.0.1", "/8080/metrics", probe.Target{Asked: at("127.0.0.1", 8080), Application: at("127.0.0.1", app.port), Path: "/metrics"})
		for _, line := range []string{
			"POST /8080/metrics", "HEAD /8080/metrics", "GET /", "GET /metrics", "GET /8080/metrics/", "GET /8080/metricsx", "GET /x/../8080/metrics",
			"GET //8080/metrics", "GET /8080/metric%73", "GET /8080/metrics;x", "GET http://a/8080/metrics", "OPTIONS *",
		} {
			if status, body := ask(line + " HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"); status != http.StatusNotFound {
				t.Errorf("%s: answer %d %q, want 404", line, status, body)
			}
		}
		if got, _ := app.requests(); len(got) > 0 {
			t.Errorf("the application got %q", got)
		}
	})
}

// TestTargetThatAnswersLate checks that a check runs for as long as its caller waits, even if the application changes
// the protocol.
func TestTargetThatAnswersLate(t *testing.T) {
	tests := map[string]string{
		"silence": "",
		"a body":  "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx",
		"101":     "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
	}
	for name, answer := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			pod, left := newPod(t), make(chan error, 1)
			app := pod.apply(localhost.String(), func(c net.Conn) {
				_, _ = io.WriteString(c, answer)
				_, err := c.Read(make([]byte, 1))
				left <- err
			})
			c := pod.connect(pod.serve(probe.Options{Target: only("/", probe.Target{Asked: at("127.0.0.1", 8080), Application: at("127.0.0.1", app.port), Path: "/"})}))
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			_ = c.SetReadDeadline(time.Now().Add(time.Hour))
			if n, err := c.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("read %d bytes, %v, want none yet", n, err)
			}
			if got, _ := app.requests(); len(got) != 1 || len(left) > 0 {
				t.Errorf("the application received %q, and %d connections ended, want one request that waits", got, len(left))
			}
			_ = c.Close()
			if err := <-left; !errors.Is(err, io.EOF) {
				t.Errorf("the application's connection: %v, want its end", err)
			}
		})
	}
}
