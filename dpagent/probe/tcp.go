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

func newTCPProber(podIP netip.Addr, t *mesh.TCPSocketProbe, timeout time.Duration) *tcpProber {
	dialer := newDialer(resetClose)
	dialer.Timeout = timeout
	return &tcpProber{dialer: dialer, address: hostPort(podIP, t.Port)}
}

func (a *tcpProber) probe(ctx context.Context, _ string) result {
	conn, err := a.dialer.DialContext(ctx, "tcp", a.address)
	if err != nil {
		return failureOf(err)
	}
	_ = conn.Close() // the port is open, which is all that matters
	return result{verdict: success}
}
