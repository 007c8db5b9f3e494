package controlplane

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// deadAfter is how long a control plane may be silent before its connection is closed.
const deadAfter = 30 * time.Second

// Dial connects to host:port by TCP. TCP keepalive detects a dead control plane within deadAfter; unlike HTTP/2 pings
// it cannot exceed a limit of the server. While data is unacknowledged, the kernel sends no keepalive probes and
// retransmits for a quarter of an hour, unless TCP_USER_TIMEOUT is set (tcp(7)).
func Dial(ctx context.Context, address string) (net.Conn, error) {
	dialer := &net.Dialer{
		Timeout:         callTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: deadAfter / 2, Interval: deadAfter / 6, Count: 3},
		Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			controlErr := c.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deadAfter/time.Millisecond))
			})
			return errors.Join(controlErr, err)
		},
	}
	return dialer.DialContext(ctx, "tcp", address) //nolint:wrapcheck // gRPC names the address
}
