package health_test

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// open opens a connection to the server in the bubble.
func open(t *testing.T, n *virtual.Network, host string) net.Conn {
	t.Helper()
	c, err := n.DialFrom(host)(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// write returns a function that writes text. It ignores errors, since the server may have closed the connection.
func write(text string) func(*testing.T, net.Conn) {
	return func(_ *testing.T, c net.Conn) { _, _ = c.Write([]byte(text)) }
}

// keepAlive sends one request, reads the response, and leaves the connection open.
func keepAlive(t *testing.T, c net.Conn) {
	write("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")(t, c)
	if response, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil {
		_ = response.Body.Close()
	}
}

// openCall begins a gRPC call over HTTP/2 without TLS, and leaves its stream open.
func openCall(method, body string) func(*testing.T, net.Conn) {
	return func(t *testing.T, c net.Conn) {
		write(http2.ClientPreface)(t, c)
		framer := http2.NewFramer(c, c)
		var block strings.Builder
		encoder := hpack.NewEncoder(&block)
		for _, f := range [][2]string{
			{":method", "POST"}, {":scheme", "http"}, {":path", "/grpc.health.v1.Health/" + method}, {":authority", "x"},
			{"content-type", "application/grpc"}, {"te", "trailers"},
		} {
			if err := encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
				t.Error(err)
			}
		}
		_ = framer.WriteSettings()
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte(block.String()), EndHeaders: true})
		_ = framer.WriteData(1, body != "", []byte(body))
	}
}

// TestServeAnswersWhileConnectionsAreHeld holds more connections than the limit, and keeps opening others.
func TestServeAnswersWhileConnectionsAreHeld(t *testing.T) {
	for name, begin := range map[string]func(*testing.T, net.Conn){
		"no request":          write(""),
		"half a request":      write("GET /livez HTTP/1.1\r\nHo"),
		"kept alive":          keepAlive,
		"upgrade to HTTP/2":   write("GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"),
		"HTTP/2":              write(http2.ClientPreface),
		"half a preface":      write(http2.ClientPreface[:16]),
		"not HTTP":            write("\x16\x03\x01\x00\x00"),
		"a watch":             openCall("Watch", "\x00\x00\x00\x00\x00"),
		"a call without body": openCall("Check", ""),
	} {
		virtual.Run(t, name, func(t *testing.T) {
			const attacker, most = "10.0.0.3", 64
			n := serveLimited(t, health.New(health.Options{}), health.Limits{Connections: most})
			attack := func() {
				c := open(t, n, attacker)
				t.Cleanup(func() { _ = c.Close() })
				begin(t, c)
			}
			for range 2 * most {
				attack()
			}
			client := newClient(n)
			for range 50 {
				go attack()
				response, err := client.Get("http://" + address + "/livez")
				if err != nil {
					t.Fatal(err)
				}
				_ = response.Body.Close()
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
}

// lacking is a listener for which some calls of Accept lack file descriptors.
type lacking struct {
	net.Listener
	left int
}

func (l *lacking) Accept() (net.Conn, error) {
	if l.left > 0 {
		l.left--
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.Listener.Accept()
}

// TestServeWaitsForDescriptors lacks descriptors for a while: the server retries, with growing delays.
func TestServeWaitsForDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		n := serveFrom(t, health.New(health.Options{}), health.Limits{}, func(l net.Listener) net.Listener { return &lacking{l, 10} })
		response, err := newClient(n).Get("http://" + address + "/livez")
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if took := time.Since(began); took < time.Second || took > 5*time.Second {
			t.Errorf("after ten failures the next Accept comes after %s, want some seconds", took)
		}
	})
}

// TestServeAnswersEachNewConnection has one caller that opens a new connection for each request, several at once, and
// leaves them open: answered connections are evicted.
func TestServeAnswersEachNewConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 64
		n := serveLimited(t, health.New(health.Options{}), health.Limits{Connections: most})
		var callers sync.WaitGroup
		conns := make(chan net.Conn, 1000)
		for range 4 {
			callers.Go(func() {
				for range cap(conns) / 4 {
					c := open(t, n, caller)
					conns <- c
					write("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")(t, c)
					_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
					response, err := http.ReadResponse(bufio.NewReader(c), nil)
					if err != nil {
						t.Errorf("a connection was not answered: %v", err)
						return
					}
					_ = response.Body.Close()
					if response.StatusCode != http.StatusOK {
						t.Errorf("the answer is %s", response.Status)
					}
				}
			})
		}
		callers.Wait()
		close(conns)
		held := 0
		for c := range conns {
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
			if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
				held++
			}
			_ = c.Close()
		}
		if held != most {
			t.Errorf("%d connections are open, want %d", held, most)
		}
	})
}

// TestServeEndsCallsWithoutBody checks that a gRPC call may last, but sending its request may not.
func TestServeEndsCallsWithoutBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, serve(t, health.New(health.Options{})), caller)
		defer func() { _ = c.Close() }()
		openCall("Check", "")(t, c)
		if err := c.SetReadDeadline(time.Now().Add(15 * time.Second)); err != nil {
			t.Fatal(err)
		}
		framer, began := http2.NewFramer(nil, c), time.Now()
		for {
			f, err := framer.ReadFrame()
			if err != nil {
				t.Fatalf("the call was not ended: %v", err)
			}
			if f.Header().StreamID == 1 && (f.Header().Type == http2.FrameRSTStream || f.Header().Flags.Has(http2.FlagHeadersEndStream)) {
				if took := time.Since(began); took != 10*time.Second {
					t.Errorf("the call was ended after %s", took)
				}
				return
			}
		}
	})
}

// TestServeRefusesHugeHeaders sends larger headers than a kubelet ever does.
func TestServeRefusesHugeHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, health.New(health.Options{}))
		var both http.Protocols
		both.SetUnencryptedHTTP2(true)
		for name, transport := range map[string]*http.Transport{"HTTP/1.1": {}, "HTTP/2": {Protocols: &both}} {
			transport.DialContext = n.DialFrom(caller)
			client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/livez", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("X-Huge", strings.Repeat("x", 64<<10))
			response, err := client.Do(request)
			if err == nil { // HTTP/2 may also reject it before it is sent
				_ = response.Body.Close()
				if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
					t.Errorf("%s: %s, want 431", name, response.Status)
				}
			}
			client.CloseIdleConnections()
		}
	})
}
