// Package strangers attacks a port as somebody may who has no certificate, from many addresses of this machine.
package strangers

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Shape is what each connection of an attack sends. Write does so until the connection or ctx ends; the connection stays open then.
type Shape struct {
	Name  string
	Write func(ctx context.Context, c net.Conn)
}

// Preface is how a client of HTTP/2 begins, with empty SETTINGS.
const Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// Types and flags of HTTP/2 frames.
const (
	data, headers, priority, rstStream, settings, ping, windowUpdate, continuation byte = 0, 1, 2, 3, 4, 6, 8, 9

	endStream, endHeaders byte = 1, 4
)

// frame returns a frame of HTTP/2.
func frame(kind, flags byte, stream uint32, payload string) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))[1:]
	b = append(b, kind, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return string(b) + payload
}

// check are the headers of a call of grpc.health.v1.Health/Check, encoded without a table.
var check = func() string {
	var b strings.Builder
	for _, h := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", "/grpc.health.v1.Health/Check"}, {":authority", "a"},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		b.WriteString("\x00" + string(byte(len(h[0]))) + h[0] + string(byte(len(h[1]))) + h[1])
	}
	return b.String()
}()

// says sends a text at once.
func says(name, text string) Shape {
	return Shape{name, func(_ context.Context, c net.Conn) { _, _ = io.WriteString(c, text) }} // it may be closed
}

// repeats sends first, and then the same again and again, 4 KiB in each 10 ms: others need the processors, too.
func repeats(name, first, again string) Shape {
	block := strings.Repeat(again, 1+4<<10/len(again))
	return Shape{name, func(ctx context.Context, c net.Conn) {
		_, err := io.WriteString(c, first)
		for err == nil && wait(ctx, 10*time.Millisecond) {
			_, err = io.WriteString(c, block)
		}
	}}
}

// wait returns false if ctx ends before.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// slowly sends a byte in each 100 ms.
func slowly(name, text string) Shape {
	return Shape{name, func(ctx context.Context, c net.Conn) {
		for i := 0; i < len(text) && wait(ctx, 100*time.Millisecond); i++ {
			if _, err := io.WriteString(c, text[i:i+1]); err != nil {
				return
			}
		}
	}}
}

// halfClosed sends a text and then ends its direction.
func halfClosed(name, text string) Shape {
	return Shape{name, func(_ context.Context, c net.Conn) {
		_, _ = io.WriteString(c, text) // it may be closed
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
	}}
}

// Idle says nothing.
func Idle() Shape { return says("idle", "") }

// HTTP are the shapes of attacks on a port for HTTP probes, of which one has that path.
func HTTP(path string) []Shape {
	head := "GET " + path + " HTTP/1.1\r\nHost: a\r\n"
	return []Shape{
		Idle(), says("half a request", head), slowly("slow headers", head+"X: "+strings.Repeat("x", 1000)),
		repeats("headers without end", head, "X-A: b\r\n"), halfClosed("half closed", head+"\r\n"), says("a body that does not come",
			"GET "+path+" HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"),
		says("TLS", "\x16\x03\x01\x02\x00\x01\x00"), says("HTTP/2", Preface), says("a probe", head+"\r\n"),
	}
}

// HTTP2 are the shapes of attacks on a port for gRPC probes.
func HTTP2() []Shape {
	open := Preface + frame(headers, endHeaders, 1, check)
	return []Shape{
		Idle(), says("a call", open+frame(data, endStream, 1, "\x00\x00\x00\x00\x00")), says("preface", Preface), slowly("slow preface", Preface+strings.Repeat("\x00", 1000)), halfClosed("half closed", open),
		says("a call without a message", open), repeats("SETTINGS", Preface, frame(settings, 0, 0, "\x00\x04\x00\x00\xff\xff")),
		repeats("PING", Preface, frame(ping, 0, 0, "12345678")), repeats("PRIORITY", open, frame(priority, 0, 3, "\x00\x00\x00\x00\x01")),
		repeats("CONTINUATION", Preface+frame(headers, endStream, 1, check), frame(continuation, 0, 1, "\x00\x01x\x01y")),
		repeats("empty DATA", open, frame(data, 0, 1, "")), repeats("WINDOW_UPDATE", open, frame(windowUpdate, 0, 0, "\x00\x00\x00\x01")),
		{"rapid reset", func(ctx context.Context, c net.Conn) {
			_, err := io.WriteString(c, Preface)
			for stream := uint32(1); err == nil && wait(ctx, time.Millisecond); stream += 2 {
				_, err = io.WriteString(c, frame(headers, endHeaders, stream, check)+frame(rstStream, 0, stream, "\x00\x00\x00\x08"))
			}
		}},
	}
}

// pause is how long after the end of a connection its stranger makes another.
const pause = 400 * time.Millisecond

// Attack has connections open to a port, each with one of the shapes in turn, and makes another where one is closed, until stop is called. They
// come from as many addresses.
func Attack(ctx context.Context, target string, connections, addresses int, shapes []Shape) (opened *atomic.Int64, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	opened = new(atomic.Int64)
	var group sync.WaitGroup
	for n := range connections {
		dialer := &net.Dialer{Timeout: time.Second, KeepAlive: -1, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 66, byte(n%addresses/250), byte(1+n%addresses%250))}}
		shape := shapes[n%len(shapes)]
		group.Go(func() {
			for wait(ctx, pause) {
				if c, err := dialer.DialContext(ctx, "tcp", target); err == nil {
					opened.Add(1)
					hold(ctx, c, shape)
				}
			}
		})
	}
	return opened, func() {
		cancel()
		group.Wait()
	}
}

// hold has a connection until the other side ends it.
func hold(ctx context.Context, c net.Conn, s Shape) {
	defer func() { _ = c.Close() }()                         // nobody waits for anything of it
	defer context.AfterFunc(ctx, func() { _ = c.Close() })() // as above
	ended := make(chan struct{})
	writing, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		defer close(ended)
		s.Write(writing, c)
	}()
	_, _ = io.Copy(io.Discard, c) // until its end or a reset
	stop()
	_ = c.Close() // ends Write
	<-ended
}
