package perport_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/dpagent/perport"
	"github.com/sonde-mesh/sonde/internal/logtest"
	"github.com/sonde-mesh/sonde/internal/slowtest"
	"github.com/sonde-mesh/sonde/internal/waittest"
)

func TestMain(m *testing.M) {
	slowtest.AtOnce(6)
	goleak.VerifyTestMain(m)
}

// patience is far longer than anything takes on a machine that is not busy.
const patience = 10 * time.Second

// server is a Server that runs.
type server struct {
	*perport.Server
	t       testing.TB
	logs    *logtest.Buffer
	metrics *prometheus.Registry
	end     func()
}

// verdicts returns how many TCP checks had that verdict, in sonde_probe_total.
func (s *server) verdicts(verdict string) float64 {
	s.t.Helper()
	families, err := s.metrics.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "sonde_probe_total" && m.GetLabel()[1].GetValue() == "tcpSocket" && m.GetLabel()[2].GetValue() == verdict {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func start(t testing.TB) *server {
	t.Helper()
	return startBeside(t, netip.AddrPort{})
}

// startBeside starts one of an agent with a virtual port.
func startBeside(t testing.TB, virtual netip.AddrPort) *server {
	t.Helper()
	s := &server{t: t, logs: &logtest.Buffer{}, metrics: prometheus.NewRegistry()}
	s.Server = perport.New(perport.Options{
		Logger: slog.New(slog.NewTextHandler(s.logs, nil)), Registerer: s.metrics, Virtual: virtual,
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	s.end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run() error = %v", err)
		}
	})
	t.Cleanup(s.end)
	return s
}

// eventually polls until check returns nil.
func eventually(t testing.TB, limit time.Duration, check func() error) {
	t.Helper()
	waittest.Until(t, limit, "", check)
}

// freeAddress returns an address on which nobody listens, and from which no connection comes.
func freeAddress(t testing.TB) netip.AddrPort {
	t.Helper()
	l := listen(t, netip.MustParseAddrPort("127.0.0.9:0"))
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func listen(t testing.TB, at netip.AddrPort) *net.TCPListener {
	t.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// application accepts connections, and counts them and the bytes that come.
type application struct {
	at netip.AddrPort
	t  testing.TB

	mu                 sync.Mutex
	connections, bytes int
	stop               func()
}

func apply(t testing.TB, at netip.AddrPort) *application {
	t.Helper()
	a := &application{at: at, t: t}
	a.open()
	t.Cleanup(func() { a.stop() })
	return a
}

func (a *application) open() {
	a.t.Helper()
	l := listen(a.t, a.at)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			a.mu.Lock()
			a.connections++
			a.mu.Unlock()
			running.Go(func() {
				defer func() { _ = c.Close() }()
				n, _ := io.Copy(io.Discard, c)
				a.mu.Lock()
				a.bytes += int(n)
				a.mu.Unlock()
			})
		}
	})
	a.stop = sync.OnceFunc(func() {
		_ = l.Close()
		running.Wait()
	})
}

func (a *application) seen() (connections, bytes int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.connections, a.bytes
}

func dial(ctx context.Context, at netip.AddrPort) (*net.TCPConn, error) {
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", at.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// isOpen returns an error unless a port accepts connections.
func isOpen(ctx context.Context, at netip.AddrPort) error {
	c, err := dial(ctx, at)
	if err == nil {
		_ = c.Close()
	}
	return err
}

// isClosed returns an error unless a port refuses connections.
func isClosed(ctx context.Context, at netip.AddrPort) error {
	if err := isOpen(ctx, at); !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%s: want a refusal, not: %w", at, err)
	}
	return nil
}

// ended returns an error unless the other side closes the connection without sending anything.
func ended(c net.Conn) error {
	_ = c.SetReadDeadline(time.Now().Add(patience))
	n, err := c.Read(make([]byte, 1))
	if n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("want the end, not %d bytes: %w", n, err)
	}
	return nil
}

// ask sends a request, and returns the answer and its body.
func ask(at netip.AddrPort, request string) (*http.Response, string, error) {
	c, err := net.Dial("tcp", at.String())
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, request); err != nil {
		return nil, "", err
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	return answer, string(body), err
}
