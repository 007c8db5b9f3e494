package fidelity_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/fidelity/cases"
	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
	"github.com/sonde-mesh/sonde/test/sondedp"
)

// perPortPod is a pod in per-port mode with its application and agent.
type perPortPod struct {
	app      *cases.Application
	end      func() // of app
	agent    *sondedp.Agent
	injected *corev1.Pod
	http     netip.AddrPort
	grpc     netip.AddrPort
}

// limit bounds each wait for the agent. It is much longer than needed on a machine that is not busy.
const limit = 30 * time.Second

// newPerPortPod starts the containers of a case, except those with TCP probes. The number of the test selects its
// addresses.
func newPerPortPod(t *testing.T, test int, c cases.Case) *perPortPod {
	t.Helper()
	m := &perPort{pool: newAddressPool(test)}
	p, err := m.pool.take("")
	if err != nil {
		t.Fatal(err)
	}
	w := &perPortPod{}
	if w.app, err = c.Start(p); err != nil {
		t.Fatal(err)
	}
	w.end = sync.OnceFunc(w.app.End)
	t.Cleanup(w.end)
	pod, injected, _, err := m.inject(t.Context(), &c, p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := askDirectly(pod, injected); err != nil {
		t.Fatal(err)
	}
	w.injected = probesOf(injected)
	env, port, err := sidecar(injected)
	if err != nil {
		t.Fatal(err)
	}
	h, err := perPortHandler(env[mesh.EnvProbeTable], env[mesh.EnvInstanceIP], port)
	if err != nil {
		t.Fatal(err)
	}
	if w.agent, err = startPerPort(env, port, h); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.agent.Kill)
	for _, p := range h.Ports() {
		if p.GRPC {
			w.grpc = p.Address
		} else {
			w.http = p.Address
		}
	}
	return w
}

// TestPerPortRefuses sends requests that no kubelet sends. None of them reaches the application, and a probe that
// follows is answered.
func TestPerPortRefuses(t *testing.T) {
	t.Parallel()
	w := newPerPortPod(t, 3, cases.Unforgiving())
	path := ""
	for _, probe := range probesIn(w.injected) {
		if probe.HTTPGet != nil {
			path = probe.HTTPGet.Path
		}
	}
	const rest = " HTTP/1.1\r\nHost: a\r\n\r\n"
	const http2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	tests := map[string]struct {
		to   netip.AddrPort
		text string
		want string // the beginning of the answer
	}{
		"another method":           {w.http, "POST " + path + rest, "HTTP/1.1 404 "},
		"HEAD":                     {w.http, "HEAD " + path + rest, "HTTP/1.1 404 "},
		"another path":             {w.http, "GET /" + rest, "HTTP/1.1 404 "},
		"the path and more":        {w.http, "GET " + path + "/x" + rest, "HTTP/1.1 404 "},
		"a path that leads there":  {w.http, "GET /x/.." + path + rest, "HTTP/1.1 404 "},
		"another query":            {w.http, "GET " + path + "?x" + rest, "HTTP/1.1 404 "},
		"a header of no probe":     {w.http, "GET " + path + " HTTP/1.1\r\nHost: a\r\nSonde-Probe: 99\r\n\r\n", "HTTP/1.1 404 "},
		"CONNECT":                  {w.http, "CONNECT a:80" + rest, "HTTP/1.1 404 "},
		"garbage":                  {w.http, "garbage\r\n\r\n", "HTTP/1.1 400 "},
		"TLS":                      {w.http, "\x16\x03\x01\x00\x05hello\r\n\r\n", "HTTP/1.1 400 "},
		"HTTP/2 to the HTTP port":  {w.http, http2, "HTTP/1.1 404 "},
		"HTTP/1 to the gRPC port":  {w.grpc, "GET /grpc.health.v1.Health/Check" + rest, ""},
		"garbage to the gRPC port": {w.grpc, "garbage\r\n\r\n", ""},
	}
	for name, tc := range tests {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", tc.to.String())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(limit))
		if _, err := io.WriteString(conn, tc.text); err != nil {
			t.Fatal(err)
		}
		answer, _ := bufio.NewReader(conn).ReadString('\n') // the connection may be reset
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		if !strings.HasPrefix(answer, tc.want) || tc.want == "" && strings.HasPrefix(answer, "HTTP/") {
			t.Errorf("%s: answer begins with %q, want %q", name, answer, tc.want)
		}
	}
	w.refusesCalls(t)
	if seen := w.app.Log(); len(seen) > 0 {
		t.Errorf("the application received %q", seen)
	}
	if verdict, message := w.ask("web", "liveness"); verdict != cases.Success {
		t.Errorf("probe after the refused requests: %s: %s", verdict, message)
	}
}

// refusesCalls makes gRPC calls other than health checks.
func (w *perPortPod) refusesCalls(t *testing.T) {
	// The agent closes each connection after its call. The next call must not use a connection that is about to close.
	client := &http.Client{Transport: &http.Transport{Protocols: unencryptedHTTP2(), DisableKeepAlives: true}}
	for _, path := range []string{"/", "/grpc.health.v1.Healthy/Check", "/echo.Echo/Say", "/x/../grpc.health.v1.Health/Check"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+w.grpc.String()+path, strings.NewReader("\x00\x00\x00\x00\x00"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/grpc")
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		const unimplemented = "12"
		if code := answer.Header.Get("Grpc-Status"); code != unimplemented {
			t.Errorf("%s: code %q, want %s", path, code, unimplemented)
		}
		if err := answer.Body.Close(); err != nil {
			t.Error(err)
		}
	}
}

func unencryptedHTTP2() *http.Protocols {
	p := &http.Protocols{}
	p.SetUnencryptedHTTP2(true)
	return p
}

// ask asks one probe.
func (w *perPortPod) ask(container, kind string) (cases.Verdict, string) {
	k := kubelet.New()
	defer k.Close()
	c, err := find(w.injected, container)
	if err != nil {
		return "", err.Error()
	}
	verdict, event := k.Probe(context.Background(), w.injected, *c, kind)
	return cases.Verdict(verdict), event
}

// TestPerPortCallerLeaves has callers that leave before the answer, and many callers at the same time. The
// application's connections must end too.
func TestPerPortCallerLeaves(t *testing.T) {
	t.Parallel()
	w := newPerPortPod(t, 5, cases.Hanging())
	const callers = 50
	text := ""
	for _, probe := range probesIn(w.injected) {
		if get := probe.HTTPGet; strings.HasSuffix(get.Path, "/slow") {
			text = fmt.Sprintf("GET %s HTTP/1.1\r\nHost: a\r\n%s: %s\r\n\r\n", get.Path, get.HTTPHeaders[0].Name, get.HTTPHeaders[0].Value)
		}
	}
	var all []net.Conn
	for range callers {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", w.http.String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		all = append(all, conn)
	}
	eventually(t, "the application is asked", func() bool { return strings.Contains(strings.Join(w.app.Log(), ""), "GET /slow") })
	if verdict, message := w.ask("app", "readiness"); verdict != cases.Success {
		t.Errorf("another probe at the same time: %s: %s", verdict, message)
	}
	for _, conn := range all {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	// The agent would wait for another half minute.
	settled := make(chan error, 1)
	go func() { settled <- w.app.Settle() }()
	select {
	case err := <-settled:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Errorf("the application's connection is still open although the caller left: %v", <-settled)
	}
}
