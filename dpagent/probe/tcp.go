package probe

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// tcpAsker connects and resets: nothing is left in TIME_WAIT.
// Source: kubernetes pkg/probe/tcp/tcp.go.
type tcpAsker struct {
	dialer  *net.Dialer
	address string
}

func newTCP(podIP netip.Addr, t *mesh.TCPSocketProbe, timeout time.Duration) *tcpAsker {
	dialer := newDialer(socketControl(lingerReset))
	dialer.Timeout = timeout
	return &tcpAsker{dialer: dialer, address: hostPort(podIP, t.Port)}
}

func (a *tcpAsker) ask(ctx context.Context, _ string) result {
	conn, err := a.dialer.DialContext(ctx, "tcp", a.address)
	if err != nil {
		return failed(err)
	}
	_ = conn.Close() // it was open, which is all that was asked
	return result{verdict: Success}
}
