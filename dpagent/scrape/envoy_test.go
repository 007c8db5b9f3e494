package scrape_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/dpagent/envoy"
	"github.com/sonde-mesh/sonde/dpagent/scrape"
)

// adminAt returns the admin interface of an Envoy that answers each connection so, once it was asked.
func adminAt(t *testing.T, answer func(conn net.Conn)) *envoy.Admin {
	t.Helper()
	at := &net.UnixAddr{Net: "unix", Name: filepath.Join(t.TempDir(), "admin.sock")}
	l, err := net.ListenUnix("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				answer(conn)
			}
			_ = conn.Close() // the other side may have done it
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	return envoy.NewAdmin(at)
}

// TestFaultsOfTheAdminInterface scrapes a pod whose Envoy answers as it should not.
func TestFaultsOfTheAdminInterface(t *testing.T) {
	t.Parallel()
	const ok = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	line := "envoy_a{b=\"" + strings.Repeat("x", 1000) + "\"} 1\n"
	for name, tc := range map[string]struct {
		answer func(conn net.Conn)
		isCut  bool
	}{
		"it never answers": {answer: func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }},
		"500": {answer: func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 10\r\n\r\nenvoy_a 1\n")
		}},
		"it closes the connection": {answer: func(net.Conn) {}},
		"it is no HTTP":            {answer: func(conn net.Conn) { _, _ = io.WriteString(conn, "envoy_a 1\n") }},
		"it begins, and hangs": {answer: func(conn net.Conn) {
			_, _ = io.WriteString(conn, ok+"a\r\nenvoy_a 1\n\r\n")
			_, _ = io.Copy(io.Discard, conn)
		}},
		"it does not end": {isCut: true, answer: func(conn net.Conn) {
			_, err := io.WriteString(conn, ok)
			for err == nil {
				_, err = io.WriteString(conn, "3f8\r\n"+line+"\r\n")
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			page := scrape.NewPage(prometheus.NewRegistry(), adminAt(t, tc.answer))
			server := httptest.NewServer(page.Local())
			defer server.Close()
			answer, err := server.Client().Get(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = answer.Body.Close() }()
			body, err := io.ReadAll(answer.Body)
			hasOwn := strings.Contains(string(body), "\n"+failedScrapes+" 0\n")
			hasEnd := strings.HasSuffix(string(body), "\n"+success+" 0\n")
			if (err != nil) != tc.isCut || hasEnd == tc.isCut || !hasOwn || !tc.isCut && strings.Contains(string(body), "\nenvoy_") {
				t.Errorf("error %v, want one: %t; of %d bytes:\n%.2000s", err, tc.isCut, len(body), body)
			}
		})
	}
}
