package envoy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// adminThat returns the admin interface of an Envoy that handles one connection with answer.
func adminThat(t *testing.T, answer func(conn net.Conn)) *Admin {
	t.Helper()
	const at = "admin.sock"
	network := virtual.NewNetwork()
	l, err := network.Listen(t.Context(), "unix", at)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	go func() {
		defer close(ended)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
			answer(conn)
		}
	}()
	return &Admin{&http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return network.DialFrom("127.0.0.1")(ctx, "unix", at)
	}}}}
}

// TestStatsOfAFaultyEnvoy checks that Stats passes on the data that it receives, and returns an error.
func TestStatsOfAFaultyEnvoy(t *testing.T) {
	const ok, line, timeout = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "a\r\nenvoy_a 1\n\r\n", 5 * time.Second
	hangs := func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }
	says := func(text string) func(net.Conn) {
		return func(conn net.Conn) { _, _ = io.WriteString(conn, text) }
	}
	tests := map[string]struct {
		answer func(conn net.Conn)
		want   string // part of the error
		stats  string
		took   time.Duration
	}{
		"it never answers":         {hangs, "call envoy", "", timeout},
		"500":                      {says("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 10\r\n\r\nenvoy_a 1\n"), "envoy responded with 500", "", 0},
		"it closes the connection": {func(net.Conn) {}, "call envoy", "", 0},
		"it is no HTTP":            {says("envoy_a 1\n"), "malformed HTTP", "", 0},
		"it ends in the middle":    {says(ok + line), "unexpected EOF", "envoy_a 1\n", 0},
		"it begins, and hangs":     {func(conn net.Conn) { says(ok + line)(conn); hangs(conn) }, "deadline exceeded", "envoy_a 1\n", timeout},
		"it does not end": {func(conn net.Conn) {
			_, err := io.WriteString(conn, ok)
			for err == nil {
				_, err = io.WriteString(conn, line)
				<-time.After(2 * time.Second)
			}
		}, "deadline exceeded", "envoy_a 1\nenvoy_a 1\nenvoy_a 1\n", timeout},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			var stats strings.Builder
			admin, began := adminThat(t, tc.answer), time.Now()
			err := admin.Stats(ctx, &stats)
			if took := time.Since(began); err == nil || !strings.Contains(err.Error(), tc.want) || stats.String() != tc.stats || took != tc.took {
				t.Errorf("Stats() = %v after %s and %q, want %q after %s and %q", err, took, stats.String(), tc.want, tc.took, tc.stats)
			}
		})
	}
	virtual.Run(t, "the writer fails", func(t *testing.T) {
		full := errors.New("full")
		if err := adminThat(t, says(ok+line)).Stats(t.Context(), writer(func([]byte) (int, error) { return 0, full })); !errors.Is(err, full) {
			t.Errorf("Stats() = %v, want %v", err, full)
		}
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }
