package perport_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sonde-mesh/sonde/dpagent/perport"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

func TestHTTPProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		var asked string
		app := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked = r.Host + r.RequestURI })}
		l := s.listen(appAt)
		go func() { _ = app.Serve(l) }() // until it is closed
		defer func() { _ = app.Close() }()
		for _, c := range []struct {
			at   netip.AddrPort
			path string
		}{{first, "/8080/x"}, {first, "/8080/y"}, {second, "/8080/y"}} { // another path, then another address
			to := netip.AddrPortFrom(c.at.Addr(), 8080)
			s.set(perport.Config{HTTP: c.at, Paths: map[string]probe.Target{c.path: {Asked: to, Application: appAt, Path: "/x"}}})
			if status, body := s.ask(c.at, c.path+"?a=b"); status != http.StatusOK || asked != to.String()+"/x?a=b" {
				t.Errorf("%s%s = %d %q after a request for %s, want 200 after a request for %s/x?a=b", c.at, c.path, status, body, asked, to)
			}
			if status, _ := s.ask(c.at, "/8080/z"); status != http.StatusNotFound {
				t.Errorf("another path: %d, want 404", status)
			}
		}
		if status, _ := s.ask(second, "/8080/x"); status != http.StatusNotFound {
			t.Errorf("removed path: %d, want 404", status)
		}
		s.set(perport.Config{})
		s.wantClosed(first, second)
	})
}

// TestPortOfAnotherForHTTP runs another program on the port.
func TestPortOfAnotherForHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		other := s.listen(first)
		s.set(perport.Config{HTTP: first})
		if err := s.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "address already in use") {
			t.Errorf("Ready() = %v, want the reason that the port is closed", err)
		}
		_ = other.Close()
		s.wait()
		if err := s.Ready(t.Context()); err != nil {
			t.Errorf("Ready() = %v after the other program has ended", err)
		}
		s.wantOpen(first)
	})
}
