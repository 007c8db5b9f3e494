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
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/slowtest"
)

func TestMain(m *testing.M) {
	if address, ok := os.LookupEnv(checkVariable); ok {
		_, _ = fmt.Fprintln(os.Stdout, tcpCheck(address))
		return
	}
	slowtest.AtOnce(6)
	goleak.VerifyTestMain(m)
}

// loopback of each family.
var loopback = map[string]string{"IPv4": "127.0.0.1", "IPv6": "::1"}

// serve starts a handler for the table on a port of its own, and returns its address.
func serve(t testing.TB, o probe.Options) string {
	t.Helper()
	address, _ := serveUntil(context.Background(), t, o)
	return address
}

// serveUntil does so until ctx ends; served is closed when Serve has returned.
func serveUntil(ctx context.Context, t testing.TB, o probe.Options) (address string, served <-chan struct{}) {
	t.Helper()
	if !o.PodIP.IsValid() {
		o.PodIP = netip.MustParseAddr("127.0.0.1")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	l := listen(t, o.PodIP.String())
	o.Port = port(l)
	h, err := probe.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := h.Serve(ctx, l); err != nil {
			t.Errorf("Serve() error = %v", err)
		}
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return l.Addr().String(), done
}

func listen(t testing.TB, ip string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // also what keeps it: the garbage collector closes what nobody uses any more
	return l
}

func port(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

// closedPort returns a port on which nobody listens.
func closedPort(t testing.TB) int32 {
	t.Helper()
	l := listen(t, "127.0.0.1")
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

// apply starts an application that reads a request's head and then does what serve says.
func apply(t testing.TB, ip string, serve func(net.Conn)) *application {
	t.Helper()
	l := listen(t, ip)
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
	t.Cleanup(func() {
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

// answer starts an application that answers with text, and closes.
func answer(t testing.TB, text string) *application {
	t.Helper()
	return apply(t, "127.0.0.1", func(c net.Conn) { _, _ = c.Write([]byte(text)) })
}

// requests that have come, and connections.
func (a *application) requests() (heads []string, connections int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.seen...), a.conn
}

// kubelet asks as the kubelet does, and judges as it does.
type kubelet struct {
	agent   string
	timeout time.Duration
}

// tries of a probe whose check the agent was too busy to make, as it may be on a busy machine.
const tries = 20

// probe asks until the agent was not too busy to check.
func (k kubelet) probe(t testing.TB, address, path, id string) (verdict, text string) {
	t.Helper()
	for range tries {
		if verdict, text = k.once(t, address, path, id); !strings.Contains(text, "too busy to check") {
			break
		}
	}
	return verdict, text
}

// within is probe with a limit of each try. Since a try may be late on a busy machine, it is repeated then, too.
func (k kubelet) within(t testing.TB, limit time.Duration, address, path, id string) (verdict, text string) {
	t.Helper()
	var took time.Duration
	for range tries {
		begin := time.Now()
		verdict, text = k.once(t, address, path, id)
		if took = time.Since(begin); took <= limit && !strings.Contains(text, "too busy to check") {
			return verdict, text
		}
	}
	t.Errorf("the last of %d verdicts came after %s, want one within %s: %s %q", tries, took, limit, verdict, text)
	return verdict, text
}

func (k kubelet) once(t testing.TB, address, path, id string) (verdict, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
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
		Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if r.URL.Hostname() != via[0].URL.Hostname() {
				return http.ErrUseLastResponse
			}
			return errors.New("the handler must not send its caller to itself")
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

// httpServer starts an application of net/http.
func httpServer(t testing.TB, h http.HandlerFunc, secure *tls.Config) (*httptest.Server, int32) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	if secure != nil {
		s.TLS = secure
		s.EnableHTTP2 = len(secure.NextProtos) > 0 && secure.NextProtos[0] == "h2"
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s, int32(s.Listener.Addr().(*net.TCPAddr).Port)
}

// expired is a certificate that no client would take that looked at it.
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
