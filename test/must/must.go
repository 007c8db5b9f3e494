// Package must has helpers for tests of the real programs, which end the test on an error.
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

// Do ends the test if err is not nil.
func Do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Poll calls check until it returns nil, at most until the test's deadline (wait.Context), and then ends the test.
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

// FreeAddress returns an address 127.0.0.1:port that is reserved for the machine until it is
// closed.
func FreeAddress(t testing.TB, m *harness.Machine) string {
	t.Helper()
	address, err := m.FreeAddress()
	Do(t, err)
	return address
}

// FreeAddresses returns addresses 127.0.0.1:port, at most 99, that are reserved until the test ends.
func FreeAddresses(t testing.TB, n int) []string {
	t.Helper()
	addresses, release, err := harness.FreeAddresses(n)
	Do(t, err)
	t.Cleanup(func() { Do(t, release()) })
	return addresses
}

// Prepare prepares a proxy without starting it.
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

// Log waits until a line of a program's log contains these texts.
func Log(t testing.TB, p *harness.Process, texts ...string) {
	t.Helper()
	Poll(t, p.Name+" to log "+strconv.Quote(texts[0]), func(context.Context) error { return p.Logged(texts...) })
}

// Make waits until a load has made this many more calls, so that they use the current
// configuration.
func Make(t testing.TB, load *harness.Load, calls int) {
	t.Helper()
	Do(t, load.WaitMore(wait.Context(t), calls))
}

// Hold stops a load. It fails the test if a call failed, or if there was no call.
func Hold(t testing.TB, load *harness.Load) harness.Report {
	t.Helper()
	r := load.Stop()
	t.Logf("load: %s", r)
	if r.Failed > 0 || r.Calls == 0 {
		t.Errorf("want calls, none of which fails: %s", r)
	}
	return r
}

// Connect opens a TCP connection with a deadline shortly before the test's deadline, and closes it when
// the test ends.
func Connect(t testing.TB, address string) net.Conn {
	t.Helper()
	ctx := wait.Context(t)
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	Do(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	deadline, _ := ctx.Deadline() // zero without a timeout of go test
	Do(t, conn.SetDeadline(deadline))
	return conn
}

// Silent opens n connections to an address from other addresses of this machine, which send nothing, and holds them
// until the test ends. It waits until the server has closed the oldest, because it has too many.
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
