package perport_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/dpagent/perport"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

func TestHTTPProbes(t *testing.T) {
	t.Parallel()
	s := start(t)
	hosts := make(chan string, 10)
	app := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hosts <- r.Host + r.RequestURI }))
	defer app.Close()
	first, second := freeAddress(t), freeAddress(t)
	for _, c := range []struct {
		at   netip.AddrPort
		path string
	}{{first, "/8080/x"}, {first, "/8080/y"}, {second, "/8080/y"}} { // another path, then another address
		asked := netip.AddrPortFrom(c.at.Addr(), 8080)
		s.Set(perport.Config{HTTP: c.at, Paths: map[string]probe.Target{
			c.path: {Asked: asked, Application: app.Listener.Addr().(*net.TCPAddr).AddrPort(), Path: "/x"},
		}})
		eventually(t, patience, func() error {
			answer, body, err := ask(c.at, "GET "+c.path+"?a=b HTTP/1.1\r\nHost: elsewhere\r\n\r\n")
			if err != nil || answer.StatusCode != http.StatusOK {
				return fmt.Errorf("%v %q, %w", answer, body, err)
			}
			return nil
		})
		if got, want := <-hosts, asked.String()+"/x?a=b"; got != want {
			t.Errorf("the application is asked for %s, want %s", got, want)
		}
		if answer, _, err := ask(c.at, "GET /8080/z HTTP/1.1\r\nHost: elsewhere\r\n\r\n"); err != nil || answer.StatusCode != http.StatusNotFound {
			t.Errorf("another path: %v, %v, want 404", answer, err)
		}
	}
	if answer, _, err := ask(second, "GET /8080/x HTTP/1.1\r\nHost: elsewhere\r\n\r\n"); err != nil || answer.StatusCode != http.StatusNotFound {
		t.Errorf("a path that is gone: %v, %v, want 404", answer, err)
	}
	s.Set(perport.Config{})
	for _, at := range []netip.AddrPort{first, second} {
		eventually(t, patience, func() error { return isClosed(t.Context(), at) })
	}
}

// TestPortOfAnotherForHTTP has a program on the port.
func TestPortOfAnotherForHTTP(t *testing.T) {
	t.Parallel()
	s := start(t)
	other := listen(t, netip.MustParseAddrPort("127.0.0.1:0"))
	at := other.Addr().(*net.TCPAddr).AddrPort()
	s.Set(perport.Config{HTTP: at})
	eventually(t, patience, func() error {
		if err := s.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "address already in use") {
			return fmt.Errorf("want why the port cannot be opened, not: %w", err)
		}
		return nil
	})
	_ = other.Close()
	eventually(t, patience, func() error { return s.Ready(t.Context()) })
	eventually(t, patience, func() error { return isOpen(t.Context(), at) })
}
