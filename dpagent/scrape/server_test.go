package scrape_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/dpagent/scrape"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// address is the address that Prometheus scrapes.
const address = "10.0.0.1:9090"

// sendBuffer is how many bytes the network buffers for a client that does not read.
const sendBuffer = 64 << 10

// port is a port for Prometheus in a network in memory.
type port struct {
	t        *testing.T
	network  *virtual.Network
	registry *prometheus.Registry
	stop     func()
}

// serve serves a port in the current bubble.
func serve(t *testing.T, envoy statistics, include ...string) *port {
	t.Helper()
	p := &port{t: t, network: virtual.NewNetwork(), registry: prometheus.NewRegistry()}
	p.network.BufferBytes = sendBuffer
	own := prometheus.NewGauge(prometheus.GaugeOpts{Name: "own"})
	p.registry.MustRegister(own)
	l, err := p.network.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := scrape.NewServer(scrape.NewPage(p.registry, envoy), include)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l, scrape.MaxConnections) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(p.stop)
	return p
}

// dial connects from an address.
func (p *port) dial(from string) net.Conn {
	p.t.Helper()
	conn, err := p.network.DialFrom(from)(p.t.Context(), "tcp", address)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ask sends a request from an address, without reading the response.
func (p *port) ask(from, request string) net.Conn {
	p.t.Helper()
	conn := p.dial(from)
	if _, err := io.WriteString(conn, request+" HTTP/1.1\r\nHost: pod\r\n\r\n"); err != nil {
		p.t.Fatal(err)
	}
	return conn
}

// answer returns the response to a request from an address.
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
	synctest.Test(t, func(t *testing.T) {
		p := serve(t, says("envoy_a 1\nenvoy_b 1\n", nil), "envoy_a")
		for request, want := range map[string]int{
			"GET /metrics": http.StatusOK, "GET /metrics?x=y": http.StatusOK, "HEAD /metrics": http.StatusOK,
			"POST /metrics": http.StatusMethodNotAllowed, "DELETE /metrics": http.StatusMethodNotAllowed, "OPTIONS /metrics": http.StatusMethodNotAllowed,
			"GET /": http.StatusNotFound, "GET /metrics/": http.StatusNotFound, "GET //metrics": http.StatusNotFound, "GET /../metrics": http.StatusNotFound,
			"GET /livez": http.StatusNotFound, "GET /readyz": http.StatusNotFound, "GET /stats/prometheus": http.StatusNotFound, "POST /quitquitquit": http.StatusNotFound,
			"GET http://other/metrics": http.StatusOK, "OPTIONS *": http.StatusNotFound, "CONNECT pod:80": http.StatusNotFound,
		} {
			status, header, body, err := p.answer("10.0.0.2", request)
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
				t.Errorf("%s: want envoy_a without envoy_b in:\n%s", request, body)
			}
		}
	})
}

// TestRequestsThatAreNone sends a request with a body, one with a header that is too long, and another protocol.
func TestRequestsThatAreNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := serve(t, says("envoy_a 1\n", nil))
		for _, header := range []string{"Content-Length: 1", "Transfer-Encoding: chunked"} {
			if status, _, body, err := p.answer("10.0.0.2", "GET /metrics HTTP/1.1\r\n"+header+"\r\nX: y"); status != http.StatusBadRequest || body != "the request must have no body\n" {
				t.Errorf("a body with %s: %d %q, %v", header, status, body, err)
			}
		}
		if status, _, _, err := p.answer("10.0.0.2", "GET /metrics HTTP/1.1\r\nX: "+strings.Repeat("x", 16<<10)+"\r\nY: y"); status != http.StatusRequestHeaderFieldsTooLarge { // the connection closes at once
			t.Errorf("a header of 16 KiB: %d, %v", status, err)
		}
		conn := p.dial("10.0.0.2")
		if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if got, _ := io.ReadAll(conn); !strings.HasPrefix(string(got), "HTTP/1.1 ") {
			t.Errorf("HTTP/2 gets %q", got)
		}
	})
}

// TestClientsThatDoNotRead has as many clients as the scrape limit request a page of some MiB without reading it.
func TestClientsThatDoNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line := strings.Repeat("envoy_a{b=\"c\"} 1\n", 1000)
		p := serve(t, func(_ context.Context, w io.Writer) error {
			for range 300 { // 5 MB
				if _, err := io.WriteString(w, line); err != nil {
					return err
				}
			}
			return nil
		})
		began := time.Now()
		silent := []net.Conn{p.ask("10.0.0.2", "GET /metrics"), p.ask("10.0.0.3", "GET /metrics")}
		<-time.After(time.Second)
		status, _, body, err := p.answer("10.0.0.4", "GET /metrics")
		if err != nil || status != http.StatusOK || !strings.HasSuffix(body, success+" 1\n") {
			t.Fatalf("another client gets %d, %d bytes, %v", status, len(body), err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("another client's scrape ends after %s, want 1s: one of the others must be evicted at once", took)
		}
		cut := func(want float64) {
			t.Helper()
			synctest.Wait()
			if n := counted(t, p.registry, "sonde_dpagent_scrapes_total", "cut"); n != want {
				t.Errorf("%v scrapes are cut, want %v", n, want)
			}
		}
		cut(1)
		<-time.After(answerTimeout - time.Second - time.Nanosecond) // the second scrape began after a pause
		cut(1)
		<-time.After(time.Second)
		cut(2)
		for _, conn := range silent {
			got, err := io.ReadAll(conn)
			if strings.HasSuffix(string(got), success+" 1\n") || len(got) > sendBuffer {
				t.Errorf("a client that did not read got %d bytes, %v: want a cut page", len(got), err)
			}
		}
	})
}

// TestClientsThatReadSlowly has several addresses request a page repeatedly, and read a little of it ten times a
// second.
func TestClientsThatReadSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line := strings.Repeat("envoy_a{b=\"c\"} 1\n", 1000)
		p := serve(t, func(_ context.Context, w io.Writer) error {
			for range 30 { // 510 KB
				if _, err := io.WriteString(w, line); err != nil {
					return err
				}
			}
			return nil
		})
		scrapes := func(n int) {
			t.Helper()
			for range n {
				if status, _, body, err := p.answer("10.0.0.4", "GET /metrics"); err != nil || status != http.StatusOK || !strings.HasSuffix(body, success+" 1\n") {
					t.Errorf("a scrape gets %d, %d bytes, %v", status, len(body), err)
				}
				<-time.After(5 * time.Second)
			}
		}
		scrapes(1)
		ctx, stop := context.WithCancel(t.Context())
		var reading sync.WaitGroup
		for n := range 30 {
			reading.Go(func() {
				for ctx.Err() == nil {
					conn := p.ask(fmt.Sprint("10.0.1.", n%10), "GET /metrics HTTP/1.1\r\nConnection: close\r\nX: y")
					for err := error(nil); err == nil && ctx.Err() == nil; <-time.After(100 * time.Millisecond) {
						_, err = conn.Read(make([]byte, 6<<10))
					}
					_ = conn.Close()
				}
			})
		}
		<-time.After(time.Second)
		scrapes(8)
		stop()
		reading.Wait()
	})
}

// counted returns the value of a counter for a result.
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

// TestConnectionsThatAskNothing opens many more connections without a request than the limit.
func TestConnectionsThatAskNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := serve(t, says("envoy_a 1\n", nil))
		for range 200 {
			p.dial("10.0.0.2")
		}
		if status, _, body, err := p.answer("10.0.0.3", "GET /metrics"); err != nil || status != http.StatusOK {
			t.Errorf("another client gets %d %s, %v", status, body, err)
		}
	})
}

// TestEnvoyThatDoesNotAnswer scrapes a pod whose Envoy takes longer than the scrape timeout.
func TestEnvoyThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := serve(t, func(ctx context.Context, _ io.Writer) error {
			<-ctx.Done()
			return ctx.Err()
		})
		status, _, body, err := p.answer("10.0.0.2", "GET /metrics")
		if err != nil || status != http.StatusOK || !strings.Contains(body, "\nown 0\n") || !strings.HasSuffix(body, "\n"+success+" 0\n") {
			t.Errorf("the page is %d, %v:\n%s", status, err, body)
		}
	})
}

// TestEndOfTheAgent ends the server while some scrapes run and others wait.
func TestEndOfTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		p := serve(t, func(ctx context.Context, _ io.Writer) error {
			asked.Add(1)
			<-ctx.Done()
			return ctx.Err()
		})
		var asking sync.WaitGroup
		for range 5 {
			asking.Go(func() { _, _, _, _ = p.answer("10.0.0.2", "GET /metrics") })
		}
		<-time.After(time.Second)
		if n := asked.Load(); n != 2 {
			t.Errorf("Envoy got %d requests, want 2", n)
		}
		began := time.Now()
		p.stop()
		asking.Wait()
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("the shutdown took %s", took)
		}
	})
}
