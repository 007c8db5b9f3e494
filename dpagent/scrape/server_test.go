package scrape_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/dpagent/scrape"
	"github.com/sonde-mesh/sonde/internal/waittest"
)

// port is a port for Prometheus that is served.
type port struct {
	t        *testing.T
	registry *prometheus.Registry
	address  string
}

func serve(t *testing.T, envoy statistics, include ...string) *port {
	t.Helper()
	registry := prometheus.NewRegistry()
	own := prometheus.NewGauge(prometheus.GaugeOpts{Name: "own"})
	registry.MustRegister(own)
	l, err := scrape.Listen(t.Context(), ":0")
	if err != nil {
		t.Fatal(err)
	}
	server := scrape.NewServer(scrape.NewPage(registry, envoy), include)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	_, number, _ := net.SplitHostPort(l.Addr().String())
	return &port{t, registry, net.JoinHostPort("127.0.0.1", number)}
}

// dial connects from an address of this host.
func (p *port) dial(from string) net.Conn {
	p.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := d.DialContext(p.t.Context(), "tcp", p.address)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ask sends a request from an address, and does not read.
func (p *port) ask(from, request string) net.Conn {
	p.t.Helper()
	conn := p.dial(from)
	if _, err := io.WriteString(conn, request+" HTTP/1.1\r\nHost: pod\r\n\r\n"); err != nil {
		p.t.Fatal(err)
	}
	return conn
}

// answer reads the answer to a request from an address.
func (p *port) answer(from, request string) (status int, header http.Header, body string, err error) {
	p.t.Helper()
	conn := p.ask(from, request)
	defer func() { _ = conn.Close() }()
	r := &http.Request{Method: strings.Fields(request)[0]}
	a, err := http.ReadResponse(bufio.NewReader(conn), r)
	if err != nil {
		return 0, nil, "", err
	}
	text, err := io.ReadAll(a.Body)
	return a.StatusCode, a.Header, string(text), err
}

func TestNothingButMetrics(t *testing.T) {
	t.Parallel()
	p := serve(t, says("envoy_a 1\nenvoy_b 1\n", nil), "envoy_a")
	for request, want := range map[string]int{
		"GET /metrics": http.StatusOK, "GET /metrics?x=y": http.StatusOK, "HEAD /metrics": http.StatusOK,
		"POST /metrics": http.StatusMethodNotAllowed, "DELETE /metrics": http.StatusMethodNotAllowed, "OPTIONS /metrics": http.StatusMethodNotAllowed,
		"GET /": http.StatusNotFound, "GET /metrics/": http.StatusNotFound, "GET //metrics": http.StatusNotFound, "GET /../metrics": http.StatusNotFound,
		"GET /livez": http.StatusNotFound, "GET /readyz": http.StatusNotFound, "GET /stats/prometheus": http.StatusNotFound, "POST /quitquitquit": http.StatusNotFound,
		"GET http://other/metrics": http.StatusOK, "OPTIONS *": http.StatusNotFound, "CONNECT pod:80": http.StatusNotFound,
	} {
		status, header, body, err := p.answer("127.0.0.1", request)
		if err != nil || status != want {
			t.Errorf("%s = %d %s, %v, want %d", request, status, body, err, want)
		}
		if status == http.StatusMethodNotAllowed && header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s allows %q", request, header.Get("Allow"))
		}
		if strings.HasPrefix(request, "HEAD") && body != "" {
			t.Errorf("%s has the body %q", request, body)
		}
		if strings.HasPrefix(request, "GET /metrics") && status == http.StatusOK && (!strings.Contains(body, "\nenvoy_a 1\n") || strings.Contains(body, "envoy_b")) {
			t.Errorf("%s: of envoy_a and envoy_b there is not envoy_a alone:\n%s", request, body)
		}
	}
}

// TestRequestsThatAreNone has a body, a header that is too long, and another protocol.
func TestRequestsThatAreNone(t *testing.T) {
	t.Parallel()
	p := serve(t, says("envoy_a 1\n", nil))
	for _, header := range []string{"Content-Length: 1", "Transfer-Encoding: chunked"} {
		if status, _, body, err := p.answer("127.0.0.1", "GET /metrics HTTP/1.1\r\n"+header+"\r\nX: y"); status != http.StatusBadRequest || body != "there must be no body\n" {
			t.Errorf("a body, by %s: %d %q, %v", header, status, body, err)
		}
	}
	if status, _, _, err := p.answer("127.0.0.1", "GET /metrics HTTP/1.1\r\nX: "+strings.Repeat("x", 16<<10)+"\r\nY: y"); status != http.StatusRequestHeaderFieldsTooLarge { // it is closed at once
		t.Errorf("a header of 16 KiB: %d, %v", status, err)
	}
	conn := p.dial("127.0.0.1")
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(conn); !strings.HasPrefix(string(got), "HTTP/1.1 ") {
		t.Errorf("HTTP/2 gets %q", got)
	}
}

// TestClientsThatDoNotRead has as many clients as there may be scrapes ask for a page of some MiB, and read nothing of it.
func TestClientsThatDoNotRead(t *testing.T) {
	t.Parallel()
	line := strings.Repeat("envoy_a{b=\"c\"} 1\n", 1000)
	var asked atomic.Int32
	large := statistics(func(_ context.Context, w io.Writer) error {
		if asked.Add(1) > 2 { // whoever reads gets less, on a machine that is busy
			_, err := io.WriteString(w, line)
			return err
		}
		for range 300 { // 5 MB
			if _, err := io.WriteString(w, line); err != nil {
				return err
			}
		}
		return nil
	})
	p := serve(t, large)
	var silent []net.Conn
	for _, from := range []string{"127.0.0.2", "127.0.0.3"} {
		silent = append(silent, p.ask(from, "GET /metrics"))
	}
	waittest.Until(t, 5*time.Second, "both places to be taken", func() error {
		for _, conn := range silent {
			if err := hasUnread(conn); err != nil {
				return err
			}
		}
		return nil
	})
	began := time.Now()
	status, _, body, err := p.answer("127.0.0.4", "GET /metrics")
	if err != nil || status != http.StatusOK || !strings.HasSuffix(body, success+" 1\n") {
		t.Fatalf("beside them: %d, %d bytes, %v", status, len(body), err)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("beside them a scrape takes %s", took)
	}
	// One has made room. The other one's own deadline ends it. The kernel then drops what they have not read.
	for _, conn := range silent {
		wantCut(t, conn)
	}
	waittest.Until(t, 5*time.Second, "the scrapes to be counted", func() error {
		if n := counted(t, p.registry, "sonde_dpagent_scrapes_total", "cut"); n != 2 {
			return fmt.Errorf("cut are %v, want 2", n)
		}
		return nil
	})
}

// wantCut waits until the connection of a client that does not read is closed, and looks at what it has got.
func wantCut(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, 40*time.Second, "the connection to be closed", func() error { return isClosed(conn) })
	got, err := io.ReadAll(conn)
	if strings.HasSuffix(string(got), success+" 1\n") || len(got) > 2<<20 {
		t.Errorf("a client that did not read got %d bytes, %v: want a page that is cut", len(got), err)
	}
}

// hasUnread returns an error until there is something to read.
func hasUnread(conn net.Conn) error {
	n, err := kernel(conn, func(fd int) (int, error) { return unix.IoctlGetInt(fd, unix.TIOCINQ) })
	if err == nil && n == 0 {
		err = errors.New("there is nothing to read")
	}
	return err
}

// isClosed returns an error until the other side has closed the connection.
func isClosed(conn net.Conn) error {
	state, err := kernel(conn, func(fd int) (int, error) {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return 0, err
		}
		return int(info.State), nil
	})
	const established = 1
	if err == nil && state == established {
		err = errors.New("it is open")
	}
	return err
}

// kernel asks it about a connection.
func kernel(conn net.Conn, ask func(fd int) (int, error)) (n int, err error) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	controlErr := raw.Control(func(fd uintptr) { n, err = ask(int(fd)) })
	if controlErr != nil {
		return 0, controlErr
	}
	return n, err
}

// counted returns the value of a counter with that result.
func counted(t *testing.T, registry *prometheus.Registry, name, result string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == result {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no %s of %s", name, result)
	return 0
}

// TestWhatTheKernelHolds looks whether accepted connections have what is set for the port.
func TestWhatTheKernelHolds(t *testing.T) {
	t.Parallel()
	l, err := scrape.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	client, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for name, o := range map[string]struct{ level, option, want int }{
		"send buffer":           {unix.SOL_SOCKET, unix.SO_SNDBUF, 2 * 64 << 10}, // the kernel doubles it, for what it keeps of its own
		"ms until it is closed": {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 10_000},
	} {
		if got, err := kernel(conn, func(fd int) (int, error) { return unix.GetsockoptInt(fd, o.level, o.option) }); err != nil || got != o.want {
			t.Errorf("%s: %d, %v, want %d", name, got, err, o.want)
		}
	}
}

// TestConnectionsThatAskNothing has many more of them than there may be.
func TestConnectionsThatAskNothing(t *testing.T) {
	t.Parallel()
	p := serve(t, says("envoy_a 1\n", nil))
	for range 200 {
		p.dial("127.0.0.2")
	}
	if status, _, body, err := p.answer("127.0.0.3", "GET /metrics"); err != nil || status != http.StatusOK {
		t.Errorf("beside them: %d %s, %v", status, body, err)
	}
}

// TestEnvoyThatDoesNotAnswer scrapes a pod whose Envoy takes longer than a scrape may wait for it.
func TestEnvoyThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	p := serve(t, func(ctx context.Context, _ io.Writer) error {
		<-ctx.Done()
		return ctx.Err()
	})
	status, _, body, err := p.answer("127.0.0.1", "GET /metrics")
	if err != nil || status != http.StatusOK || !strings.Contains(body, "\nown 0\n") || !strings.HasSuffix(body, "\n"+success+" 0\n") {
		t.Errorf("the page is %d, %v:\n%s", status, err, body)
	}
}

// TestEndOfTheAgent has scrapes under way, and some that wait.
func TestEndOfTheAgent(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 2)
	hangs := statistics(func(ctx context.Context, _ io.Writer) error {
		asked <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	l, err := scrape.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := scrape.NewServer(scrape.NewPage(prometheus.NewRegistry(), hangs), nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	p := &port{t: t, address: l.Addr().String()}
	var asking sync.WaitGroup
	for range 5 {
		asking.Go(func() { _, _, _, _ = p.answer("127.0.0.1", "GET /metrics") })
	}
	<-asked
	<-asked
	cancel()
	began := time.Now()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	asking.Wait()
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("the end takes %s", took)
	}
}
