package main

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"time"
)

// shape sends the data of an attack's connection, until the connection or ctx ends; afterwards the connection stays
// open.
type shape func(ctx context.Context, c net.Conn)

// preface is the start of an HTTP/2 client, with empty SETTINGS.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// Types and flags of HTTP/2 frames.
const (
	data, headers, priority, rstStream, settings, ping, windowUpdate, continuation byte = 0, 1, 2, 3, 4, 6, 8, 9

	endStream, endHeaders byte = 1, 4
)

// frame returns an HTTP/2 frame.
func frame(kind, flags byte, stream uint32, payload string) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))[1:]
	b = append(b, kind, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return string(b) + payload
}

// check has the headers of a call of grpc.health.v1.Health/Check, encoded without a table.
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
func says(text string) shape {
	return func(_ context.Context, c net.Conn) { _, _ = io.WriteString(c, text) } // the connection may be closed
}

// repeats sends first, and then again repeatedly, 4 KiB every 10 ms, to leave CPU time to other processes.
func repeats(first, again string) shape {
	block := strings.Repeat(again, 1+4<<10/len(again))
	return func(ctx context.Context, c net.Conn) {
		_, err := io.WriteString(c, first)
		for err == nil && wait(ctx, 10*time.Millisecond) {
			_, err = io.WriteString(c, block)
		}
	}
}

// wait returns false if ctx ends first.
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

// slowly sends a byte every 100 ms.
func slowly(text string) shape {
	return func(ctx context.Context, c net.Conn) {
		for i := 0; i < len(text) && wait(ctx, 100*time.Millisecond); i++ {
			if _, err := io.WriteString(c, text[i:i+1]); err != nil {
				return
			}
		}
	}
}

// halfClosed sends a text and then closes its sending side.
func halfClosed(text string) shape {
	return func(_ context.Context, c net.Conn) {
		_, _ = io.WriteString(c, text) // the connection may be closed
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
	}
}

// shapesOf returns the shapes of an attack, which its connections use in turn. path is the path of a probe, for ports
// of HTTP probes.
func shapesOf(kind, path string) []shape {
	switch kind {
	case "idle":
		return []shape{says("")}
	case "http":
		return onHTTP(path)
	case "http2":
		return onHTTP2()
	}
	return nil
}

func onHTTP(path string) []shape {
	head := "GET " + path + " HTTP/1.1\r\nHost: a\r\n"
	return []shape{
		says(""),
		says(head), // half a request
		slowly(head + "X: " + strings.Repeat("x", 1000)),
		repeats(head, "X-A: b\r\n"),
		halfClosed(head + "\r\n"),
		says("GET " + path + " HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"),
		says("\x16\x03\x01\x02\x00\x01\x00"), // TLS
		says(preface),
		says(head + "\r\n"), // a probe
	}
}

func onHTTP2() []shape {
	open := preface + frame(headers, endHeaders, 1, check)
	return []shape{
		says(""),
		says(open + frame(data, endStream, 1, "\x00\x00\x00\x00\x00")), // a call
		says(preface),
		slowly(preface + strings.Repeat("\x00", 1000)),
		halfClosed(open),
		says(open), // a call without a message
		repeats(preface, frame(settings, 0, 0, "\x00\x04\x00\x00\xff\xff")),
		repeats(preface, frame(ping, 0, 0, "12345678")),
		repeats(open, frame(priority, 0, 3, "\x00\x00\x00\x00\x01")),
		repeats(preface+frame(headers, endStream, 1, check), frame(continuation, 0, 1, "\x00\x01x\x01y")),
		repeats(open, frame(data, 0, 1, "")),
		repeats(open, frame(windowUpdate, 0, 0, "\x00\x00\x00\x01")),
		rapidReset,
	}
}

// rapidReset opens and resets a stream every millisecond.
func rapidReset(ctx context.Context, c net.Conn) {
	_, err := io.WriteString(c, preface)
	for stream := uint32(1); err == nil && wait(ctx, time.Millisecond); stream += 2 {
		_, err = io.WriteString(c, frame(headers, endHeaders, stream, check)+frame(rstStream, 0, stream, "\x00\x00\x00\x08"))
	}
}
