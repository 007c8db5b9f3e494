package probe_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/dpagent/probe"
)

// asEnvoy serves a handler of targets, and returns a function that sends it a request as Envoy does.
func asEnvoy(t testing.TB, podIP string) func(request string) (status int, body string) {
	t.Helper()
	address := serve(t, probe.Options{PodIP: netip.MustParseAddr(podIP), BehindEnvoy: true, Targets: true})
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
			ask := asEnvoy(t, tc.ip)
			app := apply(t, tc.ip, func(c net.Conn) { _, _ = io.WriteString(c, ok) })
			host := net.JoinHostPort(tc.ip, "8080")
			status, body := ask("GET " + tc.request + " HTTP/1.1\r\nHost: " + host + "\r\nUser-Agent: kube-probe/1.36\r\nCookie: a=b\r\n" +
				"Sonde-Probe-Target: " + net.JoinHostPort(tc.ip, strconv.Itoa(int(app.port))) + tc.path + "\r\n\r\n")
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

func TestRequestsWithoutATarget(t *testing.T) {
	ask := asEnvoy(t, "127.0.0.1")
	app := apply(t, "127.0.0.1", func(c net.Conn) { _, _ = io.WriteString(c, ok) })
	at := fmt.Sprintf("127.0.0.1:%d", app.port)
	target := func(text string) string { return "Sonde-Probe-Target: " + text + "\r\n" }
	const host = "Host: 127.0.0.1:8080\r\n"
	tests := map[string]string{
		"no header":        "GET / HTTP/1.1\r\n" + host,
		"an empty one":     "GET / HTTP/1.1\r\n" + host + target(""),
		"two":              "GET / HTTP/1.1\r\n" + host + target(at+"/") + target(at+"/"),
		"no path":          "GET / HTTP/1.1\r\n" + host + target(at),
		"no port":          "GET / HTTP/1.1\r\n" + host + target("127.0.0.1/"),
		"a name":           "GET / HTTP/1.1\r\n" + host + target("localhost:80/"),
		"only a path":      "GET / HTTP/1.1\r\n" + host + target("/"),
		"another host":     "GET / HTTP/1.1\r\nHost: 127.0.0.2:8080\r\n" + target(at+"/"),
		"a host, no port":  "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + target(at+"/"),
		"POST":             "POST / HTTP/1.1\r\nContent-Length: 0\r\n" + host + target(at+"/"),
		"HEAD":             "HEAD / HTTP/1.1\r\n" + host + target(at+"/"),
		"a probe's header": "GET / HTTP/1.1\r\n" + host + "Sonde-Probe: a\r\n",
	}
	for name, request := range tests {
		t.Run(name, func(t *testing.T) {
			if status, body := ask(request + "Connection: close\r\n\r\n"); status != http.StatusNotFound {
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
			address := serve(t, probe.Options{BehindEnvoy: true, Targets: true})
			left := make(chan error, 1)
			app := apply(t, "127.0.0.1", func(c net.Conn) {
				_, _ = io.WriteString(c, answer)
				_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
				_, err := c.Read(make([]byte, 1))
				left <- err
			})
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			request := fmt.Sprintf("GET / HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nSonde-Probe-Target: 127.0.0.1:%d/\r\n\r\n", app.port)
			if _, err := io.WriteString(c, request); err != nil {
				t.Fatal(err)
			}
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
