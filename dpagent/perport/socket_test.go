package perport_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/dpagent/perport"
)

func TestSocketOfHTTPProbes(t *testing.T) {
	t.Parallel()
	s := start(t)
	hosts := make(chan string, 10)
	app := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hosts <- r.Host + r.RequestURI }))
	defer app.Close()
	stale, err := net.Listen("unix", s.socket("probes.sock")) // what a killed agent leaves behind
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = stale.Close()

	for _, envoy := range []string{"192.0.2.1:19000", "192.0.2.2:19000"} { // the second replaces the first
		at := netip.MustParseAddrPort(envoy)
		s.Set(perport.Config{HTTP: at})
		asked := netip.AddrPortFrom(at.Addr(), 8080).String()
		eventually(t, patience, func() error {
			answer, body, err := s.ask("GET /8080/x?a=b HTTP/1.1\r\nHost: " + asked + "\r\nSonde-Probe-Target: " + app.Listener.Addr().String() + "/x\r\n\r\n")
			if err != nil || answer.StatusCode != http.StatusOK {
				return fmt.Errorf("%v %q, %w", answer, body, err)
			}
			return nil
		})
		if got, want := <-hosts, asked+"/x?a=b"; got != want {
			t.Errorf("the application is asked for %s, want %s", got, want)
		}
		info, err := os.Stat(s.socket("probes.sock"))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode of the socket: %v, %v, want 0600", info.Mode(), err)
		}
	}
	s.Set(perport.Config{})
	eventually(t, patience, func() error {
		if _, _, err := s.ask(""); err == nil || !strings.Contains(err.Error(), "no such file") {
			return fmt.Errorf("want no socket, not: %w", err)
		}
		return nil
	})
}

// TestSocketOfAnother has a handler with a probe table on the socket.
func TestSocketOfAnother(t *testing.T) {
	t.Parallel()
	s := start(t)
	other, err := net.Listen("unix", s.socket("probes.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s.Set(perport.Config{HTTP: netip.MustParseAddrPort("192.0.2.1:19000")})
	eventually(t, patience, func() error {
		if err := s.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "probe table") {
			return fmt.Errorf("want that somebody has the socket, not: %w", err)
		}
		return nil
	})
	_ = other.Close()
	eventually(t, patience, func() error { return s.Ready(t.Context()) })
}
