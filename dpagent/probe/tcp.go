package probe

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// tcpProber opens a connection and closes it with a reset, so that nothing is left in TIME_WAIT.
// Source: kubernetes pkg/probe/tcp/tcp.go.
type tcpProber struct {
	dialer  *net.Dialer
	address string
}

// NewTCPCheck returns a function that asks whether somebody accepts connections at an address, as a TCP probe does. Of an error
// IsAgentFault says whether it is about the application.
func NewTCPCheck(address netip.AddrPort, timeout time.Duration) func(context.Context) error {
	a := &tcpProber{dialer: newDialer(resetClose), address: address.String()}
	a.dialer.Timeout = timeout
	return a.connect
}

func newTCPProber(podIP netip.Addr, t *mesh.TCPSocketProbe, timeout time.Duration) *tcpProber {
	dialer := newDialer(resetClose)
	dialer.Timeout = timeout
	return &tcpProber{dialer: dialer, address: hostPort(podIP, t.Port)}
}

func (a *tcpProber) probe(ctx context.Context, _ string) result {
	if err := a.connect(ctx); err != nil {
		return failureOf(err)
	}
	return result{verdict: success}
}

func (a *tcpProber) connect(ctx context.Context) error {
	conn, err := a.dialer.DialContext(ctx, "tcp", a.address)
	if err != nil {
		return err
	}
	_ = conn.Close() // the port is open, which is all that matters
	return nil
}
