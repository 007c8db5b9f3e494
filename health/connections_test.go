package health_test

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/sonde-mesh/sonde/health"
)

// attacker is who opens connections from another address than the callers that have a question, and begins each in a way of its own.
type attacker struct {
	address string
	begin   func(*testing.T, net.Conn)
}

// open opens a connection. It returns nil when ctx has ended.
func (a *attacker) open(ctx context.Context, t *testing.T) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	c, err := dialer.DialContext(ctx, "tcp", a.address)
	switch {
	case ctx.Err() != nil:
		if err == nil {
			_ = c.Close()
		}
		return nil
	case err != nil:
		t.Errorf("the attacker: %v", err)
		return nil
	}
	a.begin(t, c)
	return c
}

// write ignores errors: the server may have closed the connection.
func write(text string) func(*testing.T, net.Conn) {
	return func(_ *testing.T, c net.Conn) { _, _ = c.Write([]byte(text)) }
}

// keepAlive has one question answered, and leaves the connection open.
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

// TestServeAnswersWhileConnectionsAreHeld holds more connections than there may be, and goes on to open others.
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := attacker{serve(t, health.New(health.Options{})), begin}
			var attack sync.WaitGroup
			ctx, stop := context.WithCancel(t.Context())
			defer attack.Wait()
			defer stop()
			for range 4 {
				held := make([]net.Conn, 0, 100)
				attack.Go(func() {
					for len(held) < cap(held) && ctx.Err() == nil {
						if c := a.open(ctx, t); c != nil {
							held = append(held, c)
						}
					}
					<-ctx.Done()
					for _, c := range held {
						_ = c.Close()
					}
				})
			}
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
			for range 50 {
				response, err := client.Get("http://" + a.address + "/livez")
				if err != nil {
					t.Fatal(err)
				}
				_ = response.Body.Close()
				<-time.After(5 * time.Millisecond)
			}
		})
	}
}

// TestServeAnswersEachNewConnection has one caller that asks on a new connection each time, several at once, and leaves each open: what makes room
// are those that have been answered.
func TestServeAnswersEachNewConnection(t *testing.T) {
	at := serve(t, health.New(health.Options{}))
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for range 250 {
				c, err := net.Dial("tcp", at)
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = c.Close() }()
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
}

// TestServeEndsCallsWithoutBody checks that a call of gRPC may last, and its request may not.
func TestServeEndsCallsWithoutBody(t *testing.T) {
	t.Parallel()
	a := attacker{serve(t, health.New(health.Options{})), openCall("Check", "")}
	c := a.open(t.Context(), t)
	defer func() { _ = c.Close() }()
	if err := c.SetReadDeadline(time.Now().Add(15 * time.Second)); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(nil, c)
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("the call was not ended: %v", err)
		}
		if f.Header().StreamID == 1 && (f.Header().Type == http2.FrameRSTStream || f.Header().Flags.Has(http2.FlagHeadersEndStream)) {
			return
		}
	}
}

// TestServeRefusesHugeHeaders sends more than a kubelet ever does.
func TestServeRefusesHugeHeaders(t *testing.T) {
	t.Parallel()
	address := serve(t, health.New(health.Options{}))
	var both http.Protocols
	both.SetUnencryptedHTTP2(true)
	for name, transport := range map[string]*http.Transport{"HTTP/1.1": {}, "HTTP/2": {Protocols: &both}} {
		client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/livez", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Huge", strings.Repeat("x", 64<<10))
		response, err := client.Do(request)
		if err == nil { // HTTP/2 may also refuse it before it is sent
			_ = response.Body.Close()
			if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
				t.Errorf("%s: %s, want 431", name, response.Status)
			}
		}
		client.CloseIdleConnections()
	}
}
