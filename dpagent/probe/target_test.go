package probe_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

// serveTarget serves one target at a path, and returns a function that sends a request.
func serveTarget(t testing.TB, podIP, path string, target probe.Target) func(request string) (status int, body string) {
	t.Helper()
	address := serve(t, probe.Options{PodIP: netip.MustParseAddr(podIP), Target: only(path, target)})
	return func(request string) (int, string) {
		t.Helper()
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = answer.Body.Close() }()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			body = append(body, " ("+err.Error()+")"...)
		}
		return answer.StatusCode, string(body)
	}
}

// only is Options.Target with one path.
func only(path string, target probe.Target) func(string) (probe.Target, bool) {
	return func(asked string) (probe.Target, bool) { return target, asked == path }
}

func at(ip string, port int32) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(ip), uint16(port))
}

func TestTargets(t *testing.T) {
	longest := "/" + strings.Repeat("a", 2047) // of an endpoint of a Dataplane
	tests := map[string]struct {
		ip      string
		path    string // of the target
		request string
		want    string // target of the application
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
		t.Run(name, func(t *testing.T) {
			app := apply(t, tc.ip, func(c net.Conn) { _, _ = io.WriteString(c, ok) })
			host := net.JoinHostPort(tc.ip, "8080")
			path, _, _ := strings.Cut(tc.request, "?")
			ask := serveTarget(t, tc.ip, path, probe.Target{Asked: at(tc.ip, 8080), Application: at(tc.ip, app.port), Path: tc.path})
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

// TestTargetsBesideATable has paths of both: those of the table come first.
func TestTargetsBesideATable(t *testing.T) {
	table, written := answer(t, ok), answer(t, ok)
	p := get(table.port, "/live")
	target := probe.Target{Asked: at("127.0.0.1", 8080), Application: at("127.0.0.1", written.port), Path: "/written"}
	address := serve(t, probe.Options{Table: mesh.ProbeTable{p}, Target: func(path string) (probe.Target, bool) {
		return target, path == "/x" || path == p.VirtualPath()
	}})
	for path, want := range map[string]string{p.VirtualPath(): "success", "/x": "success", "/y": "failure"} {
		if verdict, text := (kubelet{}).probe(t, address, path, ""); verdict != want {
			t.Errorf("%s: %s %q, want %s", path, verdict, text, want)
		}
	}
	for _, app := range []*application{table, written} {
		if heads, _ := app.requests(); len(heads) != 1 {
			t.Errorf("an application got %q, want one request", heads)
		}
	}
}

func TestRequestsWithoutATarget(t *testing.T) {
	app := apply(t, "127.0.0.1", func(c net.Conn) { _, _ = io.WriteString(c, ok) })
	ask := serveTarget(t, "127.0.0.1", "/8080/metrics", probe.Target{Asked: at("127.0.0.1", 8080), Application: at("127.0.0.1", app.port), Path: "/metrics"})
	for _, line := range []string{
		"POST /8080/metrics", "HEAD /8080/metrics", "GET /", "GET /metrics", "GET /8080/metrics/", "GET /8080/metricsx", "GET /x/../8080/metrics",
		"GET //8080/metrics", "GET /8080/metric%73", "GET /8080/metrics;x", "GET http://a/8080/metrics", "OPTIONS *",
	} {
		t.Run(line, func(t *testing.T) {
			if status, body := ask(line + " HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"); status != http.StatusNotFound {
				t.Errorf("answer %d %q, want 404", status, body)
			}
		})
	}
	if got, _ := app.requests(); len(got) > 0 {
		t.Errorf("the application got %q", got)
	}
}

// TestTargetThatAnswersLate is asked for as long as the caller waits, also where it changes the protocol.
func TestTargetThatAnswersLate(t *testing.T) {
	tests := map[string]string{
		"silence": "",
		"a body":  "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx",
		"101":     "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
	}
	for name, answer := range tests {
		t.Run(name, func(t *testing.T) {
			left := make(chan error, 1)
			app := apply(t, "127.0.0.1", func(c net.Conn) {
				_, _ = io.WriteString(c, answer)
				_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
				_, err := c.Read(make([]byte, 1))
				left <- err
			})
			address := serve(t, probe.Options{Target: only("/", probe.Target{Asked: at("127.0.0.1", 8080), Application: at("127.0.0.1", app.port), Path: "/"})})
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() bool { got, _ := app.requests(); return len(got) == 1 })
			_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
			if n, err := c.Read(make([]byte, 1)); n > 0 || !strings.Contains(err.Error(), "timeout") {
				t.Fatalf("read %d bytes, %v, want none yet", n, err)
			}
			_ = c.Close()
			if err := <-left; err == nil || strings.Contains(err.Error(), "timeout") {
				t.Errorf("the application's connection: %v, want its end", err)
			}
		})
	}
}
