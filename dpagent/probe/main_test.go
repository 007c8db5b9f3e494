package probe_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var localhost = netip.MustParseAddr("127.0.0.1")

// loopback has the loopback address of each family.
var loopback = map[string]string{"IPv4": "127.0.0.1", "IPv6": "::1"}

// pod is a pod whose agent and applications share a network in memory. A bubble must create it.
type pod struct {
	t       testing.TB
	network *virtual.Network
}

func newPod(t testing.TB) *pod { return &pod{t, virtual.NewNetwork()} }

func (p *pod) dial(ctx context.Context, network, address string) (net.Conn, error) {
	return p.network.DialFrom(localhost.String())(ctx, network, address)
}

// connect opens a connection with a deadline of ten seconds.
func (p *pod) connect(address string) net.Conn {
	p.t.Helper()
	c, err := p.dial(p.t.Context(), "tcp", address)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

// serve starts a handler for the table on its own port, and returns the address.
func (p *pod) serve(o probe.Options) string {
	p.t.Helper()
	address, _ := p.serveUntil(context.Background(), o)
	return address
}

// serveUntil is serve until ctx ends; served is closed when Serve has returned.
func (p *pod) serveUntil(ctx context.Context, o probe.Options) (address string, served <-chan struct{}) {
	p.t.Helper()
	if !o.PodIP.IsValid() {
		o.PodIP = localhost
	}
	l := p.listen(o.PodIP.String())
	o.Port, o.Dial = port(l), p.dial
	h, err := probe.New(o)
	if err != nil {
		p.t.Fatal(err)
	}
	return l.Addr().String(), p.run(ctx, h, l)
}

// run serves a handler until ctx or the test ends.
func (p *pod) run(ctx context.Context, h *probe.Handler, l net.Listener) <-chan struct{} {
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := h.Serve(ctx, l); err != nil {
			p.t.Errorf("Serve() error = %v", err)
		}
	}()
	p.t.Cleanup(func() {
		stop()
		<-done
	})
	return done
}

func (p *pod) listen(ip string) net.Listener {
	p.t.Helper()
	l, err := p.network.Listen(p.t.Context(), "tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = l.Close() })
	return l
}

func port(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

// closedPort returns a port without a listener.
func (p *pod) closedPort() int32 {
	p.t.Helper()
	l := p.listen(localhost.String())
	defer func() { _ = l.Close() }()
	return int32(port(l))
}

// application answers each connection with serve, and counts them.
type application struct {
	port int32
	mu   sync.Mutex
	seen []string // request heads
	conn int
}

// apply starts an application that reads the head of a request and then calls serve.
func (p *pod) apply(ip string, serve func(net.Conn)) *application {
	p.t.Helper()
	l := p.listen(ip)
	a := &application{port: int32(port(l))}
	var running sync.WaitGroup
	var open sync.Map
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			a.mu.Lock()
			a.conn++
			a.mu.Unlock()
			open.Store(c, nil)
			running.Go(func() {
				defer func() { _ = c.Close(); open.Delete(c) }()
				if head, ok := a.head(c); ok {
					a.mu.Lock()
					a.seen = append(a.seen, head)
					a.mu.Unlock()
					serve(c)
				}
			})
		}
	})
	p.t.Cleanup(func() {
		_ = l.Close()
		open.Range(func(c, _ any) bool { _ = c.(net.Conn).Close(); return true })
		running.Wait()
	})
	return a
}

func (a *application) head(c net.Conn) (string, bool) {
	var head strings.Builder
	for r := bufio.NewReader(c); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return "", false
		}
		head.WriteString(line)
		if line == "\r\n" {
			return head.String(), true
		}
	}
}

// answer starts an application that responds with text and closes the connection.
func (p *pod) answer(text string) *application {
	p.t.Helper()
	return p.apply(localhost.String(), func(c net.Conn) { _, _ = c.Write([]byte(text)) })
}

// requests returns the received request heads, and the number of connections.
func (a *application) requests() (heads []string, connections int) {
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.seen...), a.conn
}

// kubelet probes and judges as the kubelet does.
type kubelet struct {
	*pod
	agent   string        // default "kube-probe/1.36"
	timeout time.Duration // default 10s
}

func (p *pod) probe(address, path, id string) (verdict, text string) {
	p.t.Helper()
	return kubelet{pod: p}.probe(address, path, id)
}

func (k kubelet) probe(address, path, id string) (verdict, text string) {
	k.t.Helper()
	r, err := http.NewRequestWithContext(k.t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		k.t.Fatal(err)
	}
	if k.agent == "" {
		k.agent = "kube-probe/1.36"
	}
	r.Header.Set("User-Agent", k.agent)
	r.Header.Set("Accept", "*/*")
	if id != "" {
		r.Header.Set(mesh.ProbeHeader, id)
	}
	if k.timeout == 0 {
		k.timeout = 10 * time.Second
	}
	client := http.Client{
		Timeout:   k.timeout,
		Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true, DialContext: k.dial},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if r.URL.Hostname() != via[0].URL.Hostname() {
				return http.ErrUseLastResponse
			}
			return errors.New("the handler must not redirect its caller to itself")
		},
	}
	response, err := client.Do(r)
	if err != nil {
		return "failure", err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, 10<<10))
	switch {
	case err != nil:
		return "errored", string(body)
	case response.StatusCode < 200 || response.StatusCode >= 400:
		return "failure", response.Status + "\n" + string(body)
	case response.StatusCode >= 300:
		return "warning", string(body)
	}
	return "success", string(body)
}

// web starts an application that uses net/http.
func (p *pod) web(h http.HandlerFunc, secure *tls.Config) (port int32) {
	p.t.Helper()
	l := p.listen(localhost.String())
	port = int32(l.Addr().(*net.TCPAddr).Port)
	s := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	if secure != nil {
		s.TLSConfig = secure.Clone()
		l = tls.NewListener(l, secure)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l) // returns an error when closed
	}()
	p.t.Cleanup(func() {
		_ = s.Close()
		<-served
	})
	return port
}

// expired is a certificate that no verifying client would accept.
func expired(t testing.TB) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Unix(1, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
