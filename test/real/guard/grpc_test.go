package guard_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// call makes an HTTP/2 call on a new connection, as a gRPC client does.
func (g *guarded) call(at, path, body string) (string, error) {
	transport := &http.Transport{Protocols: http2()}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	r, err := http.NewRequestWithContext(g.t.Context(), http.MethodPost, "http://"+at+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	answer, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

func TestCalls(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "serves")
	g.waitReady()
	if text, err := g.call(g.grpc, "/ok", "message"); err != nil || !strings.HasPrefix(text, strconv.Itoa(g.worker())) {
		t.Errorf("answer %q, %v, want the worker's", text, err)
	}
	if text, err := g.call(g.grpc, "/ok", strings.Repeat("x", 40<<10)); err == nil {
		t.Errorf("a call that is too long is answered %q", text)
	}
	begin := time.Now()
	if text, err := g.call(g.short, "/always/hang", ""); err == nil || time.Since(begin) < 2*time.Second {
		t.Errorf("a call that hangs is answered %q, %v after %s, want its end after its timeout", text, err, time.Since(begin))
	}
}

// TestCallOutlivesTheWorker has a call that kills the first worker, and that the second worker
// answers.
func TestCallOutlivesTheWorker(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "serves")
	g.waitReady()
	first := strconv.Itoa(g.worker())
	text, err := g.call(g.grpc, "/first/die", "message")
	if err != nil || text == "" || text == first {
		t.Errorf("answer %q, %v, want another worker's than %s", text, err, first)
	}
}

// TestNoCalls sends invalid and endless data that no gRPC client sends: the guard closes each connection, and serves
// other clients meanwhile.
func TestNoCalls(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		text, again string
		greeted     bool
	}{
		"silence":        {"", "", false},
		"HTTP/1":         {"GET /ok HTTP/1.1\r\nHost: a\r\n\r\n", "", false},
		"half a preface": {wire.Preface[:12], "", false},
		"only a preface": {wire.Preface, "", true},
		"SETTINGS":       {wire.Preface, wire.Settings, true},
		"CONTINUATION":   {wire.Preface + "\x00\x00\x01\x01\x01\x00\x00\x00\x01x", "\x00\x00\x01\x09\x00\x00\x00\x00\x01x", true},
		"a huge frame":   {wire.Preface + "\xff\xff\xff\x00\x01\x00\x00\x00\x01", strings.Repeat("x", 100), true},
	}
	g := startGuard(t, "serves")
	g.waitReady()
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := new(net.Dialer).DialContext(t.Context(), "tcp", g.short)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			defer context.AfterFunc(wait.Context(t), func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
			_, err = io.WriteString(c, tc.text)
			for err == nil && tc.again != "" {
				_, err = io.WriteString(c, tc.again)
			}
			answer, err := io.ReadAll(c)
			if want := map[bool]string{true: wire.Settings}[tc.greeted]; string(answer) != want && (err == nil || len(answer) > 0) {
				t.Errorf("answer %q, %v, want %q", answer, err, want)
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection stays open")
			}
			if text, err := g.call(g.grpc, "/ok", ""); err != nil {
				t.Errorf("another call: %q, %v", text, err)
			}
		})
	}
}
