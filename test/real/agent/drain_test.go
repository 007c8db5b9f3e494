package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/drain"
	"github.com/sonde-mesh/sonde/dpagent/envoy"
	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/must"
)

// large is the size of the response to /large. Envoy reads all of it from the application; if the client does not
// read, it is more than the kernel buffers.
const large = 900 << 10

// application responds to /slow when told to and to other paths at once, and echoes lines over TCP.
type application struct {
	ports
	finish func()        // ends the slow requests
	began  chan struct{} // receives a value for each slow request
}

func newApplication(t testing.TB) *application {
	t.Helper()
	slow := make(chan struct{})
	a := &application{finish: sync.OnceFunc(func() { close(slow) }), began: make(chan struct{}, 8)}
	a.HTTPApp = portOf(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/slow":
			a.began <- struct{}{}
			<-slow
		case "/large":
			_, _ = io.WriteString(w, strings.Repeat("x", large))
		}
		_, _ = io.WriteString(w, "done")
	}))
	t.Cleanup(a.finish)
	echo, echoing := listen(t), make(chan struct{})
	a.TCPApp = portOf(t, echo.Addr().String())
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
	free := must.FreeAddresses(t, 2)
	a.HTTP, a.TCP = portOf(t, free[0]), portOf(t, free[1])
	return a
}

// get requests a path through Envoy.
func (a *application) get(t testing.TB, path string) error {
	if code, body := ask(t, "http://127.0.0.1:"+a.HTTP+path); code != http.StatusOK || body != "done" {
		return fmt.Errorf("%d %q", code, body)
	}
	return nil
}

func (a *application) dial(t testing.TB, port string) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", "127.0.0.1:"+port)
	must.Do(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// watched counts how often the agent reads Envoy's open work.
type watched struct {
	*envoy.Envoy
	looks atomic.Int32
}

// Get implements drain.Envoy.
func (w *watched) Get(ctx context.Context, path string) ([]byte, error) {
	w.looks.Add(1)
	return w.Envoy.Get(ctx, path)
}

// TestDrainWaits has open work that only Envoy can count. It stays open for more than twenty readings, while new
// connections are served.
func TestDrainWaits(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		open  func(t *testing.T, a *application, e *envoy.Envoy) (end func() error)
		older bool
	}{
		"request":                          {open: openRequest},
		"request, with an older bootstrap": {open: openRequest, older: true},
		"connection":                       {open: openConnection},
		"unread answer":                    {open: openAnswer},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newApplication(t)
			a.Older = tc.older
			w := &watched{Envoy: startEnvoy(t, bootstrap(t, a.ports))}
			idle := &http.Client{Transport: &http.Transport{}}
			defer idle.CloseIdleConnections()
			answer, err := idle.Get("http://127.0.0.1:" + a.HTTP + "/") // its idle connection stays open and must not delay the drain
			must.Do(t, err)
			_, _ = io.Copy(io.Discard, answer.Body)
			must.Do(t, answer.Body.Close())
			end := tc.open(t, a, w.Envoy)

			logs, drained := &logtest.Buffer{}, make(chan error, 1)
			go func() {
				drained <- drain.Run(wait.Context(t), w, 100*time.Millisecond, slog.New(slog.NewTextHandler(logs, nil)))
			}()
			for w.looks.Load() < 20 {
				if err := a.get(t, "/"); err != nil {
					t.Fatalf("a new request while work is open: %v", err)
				}
			}
			select {
			case err := <-drained:
				t.Fatalf("the drain has ended with %v", err)
			default:
			}
			must.Do(t, end())
			must.Do(t, <-drained)
			if strings.Contains(logs.String(), "requests without an application are not held") != tc.older {
				t.Errorf("log:\n%s", logs)
			}
			if err := a.get(t, "/"); err == nil {
				t.Error("a request after the drain is answered")
			}
		})
	}
}

func openRequest(t *testing.T, a *application, _ *envoy.Envoy) func() error {
	answered := make(chan error, 1)
	go func() { answered <- a.get(t, "/slow") }()
	<-a.began
	return func() error {
		a.finish()
		return <-answered
	}
}

func openConnection(t *testing.T, a *application, _ *envoy.Envoy) func() error {
	conn := a.dial(t, a.TCP)
	echo := func() error {
		_, err := fmt.Fprintln(conn, "hello")
		if err == nil {
			_, err = io.ReadFull(conn, make([]byte, len("hello\n")))
		}
		return err
	}
	must.Do(t, echo())
	return func() error { return errors.Join(echo(), conn.Close()) }
}

// openAnswer has a client that slowly reads a response that the application has sent completely.
func openAnswer(t *testing.T, a *application, e *envoy.Envoy) func() error {
	conn := a.dial(t, a.HTTP)
	must.Do(t, conn.(*net.TCPConn).SetReadBuffer(64<<10))
	_, err := io.WriteString(conn, "GET /large HTTP/1.1\r\nHost: web\r\n\r\n")
	must.Do(t, err)
	gauge := "http.inbound_" + a.HTTP + ".downstream_"
	wait.Until(t, "", func() error {
		stats, err := e.Get(t.Context(), "/stats?filter=downstream_(rq_completed%7Ccx_tx_bytes_buffered)")
		if text := string(stats); err == nil && (!strings.Contains(text, gauge+"rq_completed: 2") || strings.Contains(text, gauge+"cx_tx_bytes_buffered: 0")) {
			err = errors.New(text)
		}
		return err
	})
	return func() error {
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		read, err := io.Copy(io.Discard, answer.Body)
		if err == nil && read < large {
			err = fmt.Errorf("the client has read %d bytes of %d", read, large)
		}
		return errors.Join(err, answer.Body.Close())
	}
}

// TestSecondSignalEndsADrain has a request that stays open for longer than any test.
func TestSecondSignalEndsADrain(t *testing.T) {
	t.Parallel()
	a := newApplication(t)
	cp := newControlPlane(t, bootstrap(t, a.ports))
	cp.Start()
	p := start(t, cp, nil, "--drain-time=1h")
	answered := make(chan error, 1)
	go func() { answered <- a.get(t, "/slow") }()
	<-a.began
	p.signal(syscall.SIGTERM)
	p.waitLogged("drain begins")
	p.signal(syscall.SIGINT)
	<-p.ended
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code = %d, want 0", code)
	}
	waitGone(t, p.envoys()...)
	if err := <-answered; err == nil {
		t.Error("the request outlived Envoy")
	}
}
