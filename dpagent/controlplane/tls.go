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

	"github.com/sonde-mesh/sonde/internal/reach"
)

// watchedTLS are TLS credentials that remember whether the control plane has rejected the client certificate: gRPC
// would only report a broken connection.
type watchedTLS struct {
	credentials.TransportCredentials
	refused *atomic.Bool
	watch   *reach.Watch
}

func newWatchedTLS(watch *reach.Watch, c *tls.Config) watchedTLS {
	return watchedTLS{TransportCredentials: credentials.NewTLS(c), refused: new(atomic.Bool), watch: watch}
}

// ClientHandshake implements credentials.TransportCredentials. With TLS 1.3 the client's handshake ends before the
// server has checked the client certificate. An HTTP/2 server that accepts it sends first, so ClientHandshake waits for
// the first byte. If gRPC wrote before, the kernel might discard the server's alert with the reason.
func (w watchedTLS) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := w.handshake(ctx, authority, raw)
	w.watch.Handshaken(err)
	return conn, info, err
}

func (w watchedTLS) handshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := w.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		w.noteAlert(err)
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	first := make([]byte, 1)
	_, err = conn.Read(first)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		w.noteAlert(err)
		return nil, nil, errors.Join(fmt.Errorf("await the control plane's first byte: %w", err), conn.Close())
	}
	return &replayConn{Conn: conn, first: first}, info, nil
}

// noteAlert records an alert from the server: during a handshake the alert is about the certificate.
func (w watchedTLS) noteAlert(err error) {
	if remote, ok := errors.AsType[*net.OpError](err); ok && remote.Op == "remote error" {
		w.refused.Store(true)
	}
}

// Clone implements credentials.TransportCredentials.
func (w watchedTLS) Clone() credentials.TransportCredentials {
	w.TransportCredentials = w.TransportCredentials.Clone()
	return w
}

// replayConn is a connection whose first bytes were already read; Read returns them first.
type replayConn struct {
	net.Conn
	first []byte
}

// Read implements net.Conn.
func (c *replayConn) Read(p []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(p, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}
