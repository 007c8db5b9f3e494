package dpagent_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/envoy"
)

// large is the size of the answer to /large: Envoy takes all of it from the application, and more than the kernel takes from Envoy if the client
// does not read.
const large = 900 << 10

// application answers /slow when told to, all else at once, and echoes lines over TCP.
type application struct {
	httpPort, tcpPort int
	slow              chan struct{} // closed by finish
	finish            func()        // ends the slow requests
	began             chan struct{} // one for each slow request
}

func newApplication(t testing.TB) *application {
	t.Helper()
	a := &application{slow: make(chan struct{}), began: make(chan struct{}, 8)}
	a.finish = sync.OnceFunc(func() { close(a.slow) })
	listen := func() (net.Listener, int) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l, l.Addr().(*net.TCPAddr).Port
	}
	web, port := listen()
	a.httpPort = port
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/slow":
			a.began <- struct{}{}
			<-a.slow
		case "/large":
			_, _ = io.WriteString(w, strings.Repeat("x", large))
		}
		_, _ = io.WriteString(w, "done")
	})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(web)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
		a.finish()
	})
	echo, port := listen()
	a.tcpPort = port
	echoing := make(chan struct{})
	go func() {
		defer close(echoing)
		for {
			conn, err := echo.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = echo.Close()
		<-echoing
	})
	return a
}

// drained is an agent and its Envoy before an application, ready to be drained.
func newDrained(t testing.TB) (*running, *controlPlane, *application, ports) {
	t.Helper()
	app := newApplication(t)
	p := ports{HTTP: freePort(t), HTTPApp: app.httpPort, TCP: freePort(t), TCPApp: app.tcpPort}
	cp := newControlPlane(t, bootstrap(t, p))
	cp.start()
	r := startAgent(t, options(t, cp))
	r.waitReady()
	cp.expect(func(m *agentMessage) bool { return m.GetHello() != nil })
	return r, cp, app, p
}

// client keeps connections, as proxies and browsers do.
func newClient(t testing.TB) *http.Client {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 30 * time.Second}
}

func get(c *http.Client, port int, path string) error {
	answer, err := c.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
	if err != nil {
		return err
	}
	body, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		return err
	}
	if string(body) != "done" {
		return fmt.Errorf("%d %q", answer.StatusCode, body)
	}
	return nil
}

// ofEnvoy asks the admin interface of the agent's Envoy.
func (r *running) ofEnvoy(path string) string {
	r.t.Helper()
	answer, err := envoy.NewAdmin(&net.UnixAddr{Net: "unix", Name: filepath.Join(r.dir, mesh.SocketAdmin)}).Get(r.t.Context(), path)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(answer)
}

func (r *running) stillRuns() {
	r.t.Helper()
	select {
	case err := <-r.ended:
		r.t.Fatalf("Run() has returned %v, want it to wait for what is open", err)
	default:
	}
}

func TestDrainWaitsForRequests(t *testing.T) {
	t.Parallel()
	r, cp, app, p := newDrained(t)
	idle := newClient(t)
	if err := get(idle, p.HTTP, "/"); err != nil { // its connection stays open and must not hold the drain
		t.Fatal(err)
	}
	slow := make(chan error, 1)
	go func() { slow <- get(newClient(t), p.HTTP, "/slow") }()
	<-app.began

	r.agent.Drain()
	cp.expect(func(m *agentMessage) bool { return m.GetDraining() != nil })
	eventually(t, 10*time.Second, func() string {
		if code, body := r.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "drains") {
			return body
		}
		return ""
	})
	// Clients that have not heard of the drain are served for as long as it takes.
	fresh := newClient(t)
	until := time.Now().Add(3 * time.Second)
	eventually(t, 10*time.Second, func() string {
		fresh.CloseIdleConnections() // a connection of its own for each request
		if err := get(fresh, p.HTTP, "/"); err != nil {
			t.Fatalf("a new request while another one is open: %v", err)
		}
		if time.Now().Before(until) {
			return "going on"
		}
		return ""
	})
	r.stillRuns()
	app.finish()
	if err := <-slow; err != nil {
		t.Errorf("the request that was open at the drain: %v", err)
	}
	r.waitEnd(20 * time.Second)
	r.logged("drain done")
}

func TestDrainWaitsForConnections(t *testing.T) {
	t.Parallel()
	r, _, _, p := newDrained(t)
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.TCP))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	lines := bufio.NewReader(conn)
	echo := func() {
		t.Helper()
		if _, err := fmt.Fprintln(conn, "hello"); err != nil {
			t.Fatal(err)
		}
		if line, err := lines.ReadString('\n'); err != nil || line != "hello\n" {
			t.Fatalf("echo = %q, %v", line, err)
		}
	}
	echo()
	r.agent.Drain()
	until := time.Now().Add(3 * time.Second)
	eventually(t, 10*time.Second, func() string {
		echo()
		if time.Now().Before(until) {
			return "going on"
		}
		return ""
	})
	r.stillRuns()
	_ = conn.Close()
	r.waitEnd(20 * time.Second)
	r.logged("drain done")
}

// TestDrainWaitsForReaders has a client that is slow to read an answer which its application has long sent.
func TestDrainWaitsForReaders(t *testing.T) {
	t.Parallel()
	r, _, _, p := newDrained(t)
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.HTTP))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET /large HTTP/1.1\r\nHost: web\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, func() string {
		stats := r.ofEnvoy("/stats?filter=downstream_(rq_completed%7Ccx_tx_bytes_buffered)")
		if !strings.Contains(stats, fmt.Sprintf("http.inbound_%d.downstream_rq_completed: 1", p.HTTP)) || strings.Contains(stats, fmt.Sprintf("http.inbound_%d.downstream_cx_tx_bytes_buffered: 0", p.HTTP)) {
			return stats
		}
		return ""
	})
	r.agent.Drain()
	until := time.Now().Add(time.Second)
	eventually(t, 10*time.Second, func() string {
		if time.Now().Before(until) {
			return "going on"
		}
		return ""
	})
	r.stillRuns()
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err != nil || len(body) < large {
		t.Errorf("the client has read %d bytes of %d: %v", len(body), large, err)
	}
	r.waitEnd(20 * time.Second)
	r.logged("drain done")
}

// TestClientsAreToldOfTheDeletion has the control plane say that the pod is being deleted: no hook has run.
func TestClientsAreToldOfTheDeletion(t *testing.T) {
	t.Parallel()
	app := newApplication(t)
	p := ports{HTTP: freePort(t), HTTPApp: app.httpPort}
	cp := newControlPlane(t, bootstrap(t, p))
	cp.set(func() { cp.features = []string{"drain-state"} })
	cp.start()
	r := startAgent(t, options(t, cp))
	r.waitReady()
	kept := newClient(t)
	ask := func() (last bool) {
		answer, err := kept.Get(fmt.Sprintf("http://127.0.0.1:%d/", p.HTTP))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		return answer.Close
	}
	if ask() {
		t.Fatal("the connection is closed before the deletion")
	}
	cp.send <- drainState(&agentv1.DrainState{Node: "taint of node a"})
	r.stillRuns()
	if ask() {
		t.Error("the connection is closed, and the pod stays")
	}
	cp.send <- drainState(&agentv1.DrainState{Terminating: true})
	eventually(t, 5*time.Second, func() string {
		if !ask() {
			return "the connection stays"
		}
		return ""
	})
	// The agent sets the runtime after Envoy has begun to tell its clients.
	eventually(t, 5*time.Second, func() string {
		if ending := r.ofEnvoy("/runtime"); !strings.Contains(ending, `"`+mesh.RuntimeEnding+`"`) {
			return "Envoy's runtime is " + ending
		}
		return ""
	})
}

func TestDrainEndsAtItsLimit(t *testing.T) {
	t.Parallel()
	app := newApplication(t)
	p := ports{HTTP: freePort(t), HTTPApp: app.httpPort}
	cp := newControlPlane(t, bootstrap(t, p))
	cp.start()
	o := options(t, cp)
	o.DrainTime = 2 * time.Second
	r := startAgent(t, o)
	r.waitReady()
	slow := make(chan error, 1)
	go func() { slow <- get(newClient(t), p.HTTP, "/slow") }()
	<-app.began
	started := time.Now()
	r.agent.Drain()
	r.waitEnd(20 * time.Second)
	if took := time.Since(started); took < 2*time.Second {
		t.Errorf("the drain took %s, want all of its 2s", took)
	}
	r.logged("drain cut short")
	app.finish()
	if err := <-slow; err == nil {
		t.Error("the request outlived Envoy")
	}
}

// TestDrainOfAnOlderBootstrap drains an Envoy whose runtime cannot be changed: one that was started with the bootstrap of an older release.
func TestDrainOfAnOlderBootstrap(t *testing.T) {
	t.Parallel()
	app := newApplication(t)
	p := ports{HTTP: freePort(t), HTTPApp: app.httpPort}
	older := bytes.Replace(bootstrap(t, p), []byte(`{"name": "agent", "admin_layer": {}}`), []byte(`{"name": "agent", "static_layer": {}}`), 1)
	cp := newControlPlane(t, older)
	cp.start()
	r := startAgent(t, options(t, cp))
	r.waitReady()
	slow := make(chan error, 1)
	go func() { slow <- get(newClient(t), p.HTTP, "/slow") }()
	<-app.began
	r.agent.Drain()
	r.logged("requests that find no application are not held")
	app.finish()
	if err := <-slow; err != nil {
		t.Errorf("the request in flight: %v", err)
	}
	r.waitEnd(20 * time.Second)
	r.logged("drain done")
}

func TestDrainWithoutControlPlane(t *testing.T) {
	t.Parallel()
	r, cp, _, _ := newDrained(t)
	cp.stop()
	r.logged("session with the control plane ended")
	if code, body := r.get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz without a control plane = %d %s, want 200: the data plane goes on", code, body)
	}
	r.agent.Drain()
	r.waitEnd(8 * time.Second)
	r.logged("drain notice not acknowledged by the control plane")
	r.logged("drain done")
}

func TestDrainIsSaidAgain(t *testing.T) {
	t.Parallel()
	r, cp, app, p := newDrained(t)
	slow := make(chan error, 1)
	go func() { slow <- get(newClient(t), p.HTTP, "/slow") }()
	<-app.began
	r.agent.Drain()
	cp.expect(func(m *agentMessage) bool { return m.GetDraining() != nil })
	cp.stop()
	cp.start()
	if hello := cp.expect(func(m *agentMessage) bool { return m.GetHello() != nil }).GetHello(); !hello.GetDraining() {
		t.Errorf("Hello of a draining agent = %v, want draining", hello)
	}
	app.finish()
	if err := <-slow; err != nil {
		t.Error(err)
	}
	r.waitEnd(20 * time.Second)
}

func TestSignals(t *testing.T) {
	t.Parallel()
	app := newApplication(t)
	p := ports{HTTP: freePort(t), HTTPApp: app.httpPort}
	cp := newControlPlane(t, bootstrap(t, p))
	cp.start()
	sonde := startProgram(t, cp, "--drain-time=1m")
	sonde.waitReady()
	slow := make(chan error, 1)
	go func() { slow <- get(newClient(t), p.HTTP, "/slow") }()
	<-app.began
	signal := func(s os.Signal) {
		if err := sonde.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGTERM)
	sonde.logged("drain begins")
	started := time.Now()
	signal(syscall.SIGINT)
	if err := sonde.cmd.Wait(); err != nil {
		t.Errorf("sonde-dp ended with %v, want nil", err)
	}
	if took := time.Since(started); took > 5*time.Second {
		t.Errorf("the second signal took %s", took)
	}
	for _, pid := range sonde.envoyPIDs() {
		eventually(t, time.Second, func() string { return gone(pid) })
	}
	app.finish()
	if err := <-slow; err == nil {
		t.Error("the request outlived Envoy")
	}
}
