package redirect_test

import (
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
)

// proxy forwards connections like Envoy's capture listeners, and counts them.
type proxy struct {
	pod      *redirecttest.Namespace
	toApp    redirecttest.Caller
	accepted atomic.Int32
}

// loopSize is the number of connections at which a proxy stops.
const loopSize = 20

// start serves the capture ports. Like Envoy, it closes connections to the capture ports
// themselves.
func (p *proxy) start(t *testing.T) {
	for port, who := range map[int]redirecttest.Caller{mesh.PortRedirectIn: p.toApp, mesh.PortRedirectOut: envoy} {
		p.pod.Serve(t, port, func(conn net.Conn) {
			at, err := redirecttest.OriginalDestination(conn)
			if err != nil || p.accepted.Add(1) > loopSize || at.Port() == mesh.PortRedirectIn || at.Port() == mesh.PortRedirectOut {
				return
			}
			upstream, err := p.pod.Dial(who, at)
			if err != nil {
				return
			}
			defer func() { _ = upstream.Close() }()
			_, _ = io.Copy(conn, upstream)
		})
	}
}

// TestNoLoop has all callers connect to all destinations through a proxy that forwards like Envoy and counts.
func TestNoLoop(t *testing.T) {
	w := newWorld(t)
	w.install(t, defaults())
	p := &proxy{pod: w.pod, toApp: toApp}
	p.start(t)
	for family, at := range addresses {
		for name, c := range connections {
			to := netip.AddrPortFrom(netip.MustParseAddr(at[c.to]), c.port)
			if c.to == "service" {
				continue // these addresses are unassigned
			}
			from := w.pod
			if c.fromHost {
				from = w.host
			}
			p.accepted.Store(0)
			answer := ask(from, c.who, to)
			// Envoy's own connections pass one listener, and an application's at most one: the host is not in this
			// mesh.
			if n := p.accepted.Load(); n > 1 {
				t.Errorf("%s, %s: one connection became %d", family, name, n)
			}
			want := c.straight()
			if want == strconv.Itoa(int(c.port)) {
				want = "" // connections to a capture port are closed
			}
			if want != "" && answer != want {
				t.Errorf("%s, %s: answer = %q, want %q", family, name, answer, want)
			}
		}
	}
}

// TestPriorityPreventsLoop shows a loop with a proxy that does not mark its connections: the tests above can fail.
func TestPriorityPreventsLoop(t *testing.T) {
	w := newWorld(t)
	w.install(t, defaults())
	p := &proxy{pod: w.pod, toApp: envoy}
	p.start(t)
	_ = ask(w.host, redirecttest.Caller{}, netip.MustParseAddrPort(pod4+":8080"))
	if n := p.accepted.Load(); n <= loopSize {
		t.Errorf("without the priority, one connection became %d, want a loop", n)
	}
}
