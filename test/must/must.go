// Package must is for tests of the real programs: it does what has to succeed, and ends the test if it does not.
package must

import (
	"context"
	"io"
	"net"
	"strconv"
	"testing"

	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/harness"
)

// Do ends the test if there is an error.
func Do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Poll calls check until it returns nil, as long as the test may live (wait.Context), and ends the test if it never does.
func Poll(t testing.TB, what string, check func(context.Context) error) {
	t.Helper()
	Do(t, harness.Poll(wait.Context(t), what, check))
}

// Port returns the port of host:port.
func Port(t testing.TB, address string) int {
	t.Helper()
	_, text, err := net.SplitHostPort(address)
	Do(t, err)
	port, err := strconv.ParseUint(text, 10, 16)
	Do(t, err)
	return int(port)
}

// FreeAddress returns an address, 127.0.0.1:port, that is the machine's own until it is closed.
func FreeAddress(t testing.TB, m *harness.Machine) string {
	t.Helper()
	address, err := m.FreeAddress()
	Do(t, err)
	return address
}

// Prepare prepares a proxy without starting anything.
func Prepare(t testing.TB, m *harness.Machine, o harness.ProxyOptions) *harness.Proxy {
	t.Helper()
	p, err := m.Prepare(o)
	Do(t, err)
	return p
}

// Add starts proxies, and waits until they are ready.
func Add(t testing.TB, m *harness.Machine, options ...harness.ProxyOptions) []*harness.Proxy {
	t.Helper()
	proxies, err := m.Add(wait.Context(t), options...)
	Do(t, err)
	return proxies
}

// HaveEndpoints waits until the Envoy of p has exactly these addresses for a service.
func HaveEndpoints(t testing.TB, p *harness.Proxy, service string, want ...string) {
	t.Helper()
	Poll(t, "the endpoints of "+service+" in "+p.Name, func(ctx context.Context) error { return p.HasEndpoints(ctx, service, want...) })
}

// Log waits until a line of a program's log has these texts.
func Log(t testing.TB, p *harness.Process, texts ...string) {
	t.Helper()
	Poll(t, p.Name+" to log "+strconv.Quote(texts[0]), func(context.Context) error { return p.Logged(texts...) })
}

// Make waits until a load has made that many more calls, so that what was done before is in use.
func Make(t testing.TB, load *harness.Load, calls int) {
	t.Helper()
	Do(t, load.WaitMore(wait.Context(t), calls))
}

// Hold stops a load. It is an error if a call failed, or if none was made.
func Hold(t testing.TB, load *harness.Load) harness.Report {
	t.Helper()
	r := load.Stop()
	t.Logf("load: %s", r)
	if r.Failed > 0 || r.Calls == 0 {
		t.Errorf("want calls, and none that fails: %s", r)
	}
	return r
}

// Connect opens a TCP connection with a deadline: shortly before the test has to end, when it is closed.
func Connect(t testing.TB, address string) net.Conn {
	t.Helper()
	ctx := wait.Context(t)
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	Do(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	deadline, _ := ctx.Deadline() // none without a timeout of go test
	Do(t, conn.SetDeadline(deadline))
	return conn
}

// Silent opens so many connections to an address from others of this machine, which send nothing, and holds them until the test ends. It waits until the server
// has had enough of them: it has closed the oldest.
func Silent(t testing.TB, n int, address string) {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 66, 0, 1)}}
	var oldest net.Conn
	for range n {
		conn, err := dialer.DialContext(wait.Context(t), "tcp", address)
		Do(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		if oldest == nil {
			oldest = conn
		}
	}
	_, _ = io.Copy(io.Discard, oldest)
}
