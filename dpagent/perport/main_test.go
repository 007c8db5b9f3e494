package perport_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/dpagent/perport"
	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// period is the time between two checks of an application, and between two attempts to open a port.
const period = time.Second

// Addresses of the pod: two ports for probes, and the application.
var (
	first  = netip.MustParseAddrPort("127.0.0.9:1")
	second = netip.MustParseAddrPort("127.0.0.9:2")
	appAt  = netip.MustParseAddrPort("127.0.0.9:8080")
)

// server is a running Server in a network in memory.
type server struct {
	*perport.Server
	t       testing.TB
	network *virtual.Network
	logs    *logtest.Buffer
	metrics *prometheus.Registry
	end     func()
}

// verdicts returns how many TCP checks had that verdict, in sonde_probe_total.
func (s *server) verdicts(verdict string) int {
	s.t.Helper()
	families, err := s.metrics.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "sonde_probe_total" && m.GetLabel()[1].GetValue() == "tcpSocket" && m.GetLabel()[2].GetValue() == verdict {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	return 0
}

// start runs a Server in the current bubble. change may modify its options.
func start(t testing.TB, change ...func(*perport.Options)) *server {
	t.Helper()
	s := &server{t: t, network: virtual.NewNetwork(), logs: &logtest.Buffer{}, metrics: prometheus.NewRegistry()}
	o := perport.Options{
		Logger: slog.New(slog.NewTextHandler(s.logs, nil)), Registerer: s.metrics,
		Listen: s.network.Listen, Dial: s.network.DialFrom("127.0.0.9"),
	}
	for _, change := range change {
		change(&o)
	}
	s.Server = perport.New(o)
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

// set replaces the Config and waits until the Server has applied it.
func (s *server) set(c perport.Config) {
	s.Set(c)
	synctest.Wait()
}

// wait lets a period pass, and waits until its effects are complete.
func (s *server) wait() {
	<-time.After(period)
	synctest.Wait()
}

func (s *server) listen(at netip.AddrPort) net.Listener {
	s.t.Helper()
	l, err := s.network.Listen(s.t.Context(), "tcp", at.String())
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

// application accepts connections, and counts them and the received bytes.
type application struct {
	s  *server
	at netip.AddrPort

	mu                 sync.Mutex
	connections, bytes int
	stop               func()
}

func (s *server) apply(at netip.AddrPort) *application {
	s.t.Helper()
	a := &application{s: s, at: at}
	a.open()
	s.t.Cleanup(func() { a.stop() })
	return a
}

func (a *application) open() {
	a.s.t.Helper()
	l := a.s.listen(a.at)
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
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.connections, a.bytes
}

// dial connects a client to a port. The connection is closed when the test ends.
func (s *server) dial(at netip.AddrPort) (net.Conn, error) {
	c, err := s.network.DialFrom("127.0.0.1")(s.t.Context(), "tcp", at.String())
	if err == nil {
		s.t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// connect returns a connection that the Server has accepted.
func (s *server) connect(at netip.AddrPort) net.Conn {
	s.t.Helper()
	c, err := s.dial(at)
	if err != nil {
		s.t.Fatal(err)
	}
	synctest.Wait()
	return c
}

// wantOpen checks that ports accept connections.
func (s *server) wantOpen(at ...netip.AddrPort) {
	s.t.Helper()
	for _, at := range at {
		if c, err := s.dial(at); err != nil {
			s.t.Errorf("%s: error = %v, want an open port", at, err)
		} else {
			_ = c.Close()
		}
	}
}

// wantClosed checks that ports refuse connections.
func (s *server) wantClosed(at ...netip.AddrPort) {
	s.t.Helper()
	for _, at := range at {
		if _, err := s.dial(at); !errors.Is(err, syscall.ECONNREFUSED) {
			s.t.Errorf("%s: error = %v, want a refusal", at, err)
		}
	}
}

// end returns the error of a connection that has ended without a byte, nil if it is open.
func end(c net.Conn) error {
	_ = c.SetReadDeadline(time.Now().Add(time.Nanosecond))
	n, err := c.Read(make([]byte, 1))
	switch {
	case n > 0:
		return errors.New("received a byte")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil
	}
	return err
}

// ask sends a GET request and returns the status and body of the response. It leaves the connection idle, so that no
// shutdown waits for it.
func (s *server) ask(at netip.AddrPort, path string) (int, string) {
	s.t.Helper()
	c := s.connect(at)
	if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: elsewhere\r\n\r\n"); err != nil {
		s.t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	synctest.Wait()
	return answer.StatusCode, string(body)
}
