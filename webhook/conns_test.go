package webhook_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/webhook"
)

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00" // with empty settings

func dialTLS(t *testing.T, url, protocol string) *tls.Conn {
	t.Helper()
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}}
	c, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c.(*tls.Conn)
}

// A connection on which nothing is asked ends, whatever frames it sends.
func TestFramesThatAskNothing(t *testing.T) {
	tests := map[string]string{
		"PING":     "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678",
		"PRIORITY": "\x00\x00\x05\x02\x00\x00\x00\x00\x01\x00\x00\x00\x00\x01",
		"SETTINGS": "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x00\xff\xff",
		"unknown":  "\x00\x00\x04\xfa\x00\x00\x00\x00\x001234",
	}
	for name, frame := range tests {
		t.Run(name, func(t *testing.T) {
			url, _, _ := serve(t, enabled().options())
			c := dialTLS(t, url, "h2")
			go func() { _, _ = io.WriteString(c, preface+strings.Repeat(frame, 512<<10/len(frame))) }()
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is still open after 512 KiB of frames")
			}
		})
	}
}

// The connection of an API server, on which reviews are answered, stays while others come and ask nothing.
func TestConnectionsThatAreUsedStay(t *testing.T) {
	url, client, _ := serve(t, enabled().options())
	body := podReview("shop", []byte(`{"spec":{"containers":[{"name":"app"}]}}`))
	ask := func() (reused bool) {
		t.Helper()
		trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
		r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodPost, url+webhook.PathInject, bytes.NewReader(body))
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
	var first net.Conn
	for range 600 { // more than there may be
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "https://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() //nolint:errcheck // nothing was sent
		if first == nil {
			first = c
		}
	}
	if err := first.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the first silent connection: %v, want it closed", err)
	}
	if !ask() {
		t.Error("the connection on which a review was answered is closed for one that is silent")
	}
}

// A client that takes no answer holds its place no longer than one that sends nothing, and others are answered.
func TestAnswersThatAreNotTaken(t *testing.T) {
	url, client, _ := serve(t, enabled().options())
	body := podReview("shop", []byte(`{"spec":{"containers":[{"name":"app"}]}}`))
	window := "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00" // none for answers
	const perConnection = 32
	for range 40 { // 1,280 reviews, where 1,024 may be held
		c := dialTLS(t, url, "h2")
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
	if answer, text := send(t, client, url+webhook.PathInject, body); answer.StatusCode != http.StatusOK {
		t.Errorf("status %d: %s", answer.StatusCode, text)
	}
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
