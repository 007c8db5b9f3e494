package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

// watchedTLS are credentials that remember whether the control plane has refused the certificate: gRPC would only say
// that the connection broke.
type watchedTLS struct {
	credentials.TransportCredentials
	refused *atomic.Bool
}

func newWatchedTLS(c *tls.Config) watchedTLS {
	return watchedTLS{TransportCredentials: credentials.NewTLS(c), refused: new(atomic.Bool)}
}

// ClientHandshake implements credentials.TransportCredentials. With TLS 1.3 it ends before the server has looked at the
// certificate. A server of HTTP/2 that takes it speaks first, so its first byte is awaited; what gRPC would write
// meanwhile would make the kernel throw away why the connection was closed.
func (w watchedTLS) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := w.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		w.note(err)
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	first := make([]byte, 1)
	_, err = conn.Read(first)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		w.note(err)
		return nil, nil, errors.Join(fmt.Errorf("await the control plane's first byte: %w", err), conn.Close())
	}
	return &begunConn{Conn: conn, first: first}, info, nil
}

// note keeps in mind that the server has sent an alert, which is about the certificate in a handshake.
func (w watchedTLS) note(err error) {
	if remote, ok := errors.AsType[*net.OpError](err); ok && remote.Op == "remote error" {
		w.refused.Store(true)
	}
}

// Clone implements credentials.TransportCredentials.
func (w watchedTLS) Clone() credentials.TransportCredentials {
	w.TransportCredentials = w.TransportCredentials.Clone()
	return w
}

// begunConn is a connection of which the first bytes have been read.
type begunConn struct {
	net.Conn
	first []byte
}

// Read implements net.Conn.
func (c *begunConn) Read(p []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(p, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}
