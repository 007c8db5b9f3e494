package webhook_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/webhook"
)

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00" // with empty settings

// dial connects a host to the server for the duration of the test.
func dial(t *testing.T, n *virtual.Network, host string) net.Conn {
	t.Helper()
	c, err := n.DialFrom(host)(t.Context(), "tcp", serverAt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func dialTLS(t *testing.T, n *virtual.Network) *tls.Conn {
	t.Helper()
	c := tls.Client(dial(t, n, somePod), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err := c.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// The server closes a connection without requests, even if it sends frames.
func TestFramesThatAskNothing(t *testing.T) {
	tests := map[string]string{
		"PING":     "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678",
		"PRIORITY": "\x00\x00\x05\x02\x00\x00\x00\x00\x01\x00\x00\x00\x00\x01",
		"SETTINGS": "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x00\xff\xff",
		"unknown":  "\x00\x00\x04\xfa\x00\x00\x00\x00\x001234",
	}
	for name, frame := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			n, _, _ := serve(t, enabled().options())
			c := dialTLS(t, n)
			began := time.Now()
			go func() { _, _ = io.WriteString(c, preface+strings.Repeat(frame, 512<<10/len(frame))) }()
			_, _ = io.Copy(io.Discard, c) // until the server closes the connection
			if took := time.Since(began); took > 0 {
				t.Errorf("the connection is open for %s after 512 KiB of frames", took)
			}
		})
	}
}

// An API server's connection with answered reviews remains open while idle connections arrive from the same source.
func TestConnectionsThatAreUsedStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, client, _ := serve(t, enabled().options())
		body := podReview("shop", []byte(`{"spec":{"containers":[{"name":"app"}]}}`))
		ask := func() (reused bool) {
			t.Helper()
			trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
			r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodPost, serverURL+webhook.PathInject, bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			answer, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close() //nolint:errcheck // read to its end
			if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != http.StatusOK {
				t.Fatalf("status %d: %v", answer.StatusCode, err)
			}
			return reused
		}
		ask()
		time.Sleep(time.Second) // it has been idle for longer than the following connections
		first, began := dial(t, n, apiServer), time.Now()
		for range 599 { // together with it more than the limit
			dial(t, n, apiServer)
		}
		if _, err := first.Read(make([]byte, 1)); err == nil || time.Since(began) > time.Second {
			t.Errorf("the first silent connection: %v after %s, want it closed", err, time.Since(began))
		}
		if !ask() {
			t.Error("the connection on which a review was answered is closed for one that is silent")
		}
	})
}

// A client that does not read its response holds its place no longer than one that sends nothing, and other clients get
// responses.
func TestAnswersThatAreNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, client, _ := serve(t, enabled().options())
		body := podReview("shop", []byte(`{"spec":{"containers":[{"name":"app"}]}}`))
		window := "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00" // no window for responses
		const perConnection = 32
		for range 40 { // 1,280 reviews, above the limit of 1,024
			c := dialTLS(t, n)
			go func() { _, _ = io.Copy(io.Discard, c) }()
			var text strings.Builder
			text.WriteString(preface + window)
			for id := range perConnection {
				text.WriteString(reviewFrames(byte(2*id+1), body))
			}
			if _, err := io.WriteString(c, text.String()); err != nil {
				t.Fatal(err)
			}
		}
		if answer, text := send(t, client, body); answer.StatusCode != http.StatusOK {
			t.Errorf("status %d: %s", answer.StatusCode, text)
		}
	})
}

// reviewFrames returns the frames of a review. The header is in literals without a table.
func reviewFrames(stream byte, body []byte) string {
	literal := func(name, value string) string {
		return "\x00" + string(rune(len(name))) + name + string(rune(len(value))) + value
	}
	header := "\x83\x87" + literal(":path", "/inject") + literal(":authority", "a") + literal("content-type", "application/json")
	frame := func(kind, flags byte, payload string) string {
		n := len(payload)
		return string([]byte{byte(n >> 16), byte(n >> 8), byte(n), kind, flags, 0, 0, 0, stream}) + payload
	}
	return frame(1, 4, header+literal("content-length", strconv.Itoa(len(body)))) + frame(0, 1, string(body))
}
