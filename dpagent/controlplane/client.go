// Package controlplane is the agent's client of the control plane.
package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/reach"
)

const (
	callTimeout = 10 * time.Second
	maxMessage  = 1 << 20
	// bufferBytes is small, since the agent sends little.
	bufferBytes = 4 << 10
)

// Client opens a connection for each call and each session, so that each uses the newest certificate, and errors tell why
// connecting failed.
type Client struct {
	// Address of the control plane, host:port.
	Address string
	// Roots returns the CAs by which the control plane is verified. It is called for each connection.
	Roots func() (*x509.CertPool, error)
	// Certificate returns the client certificate, an empty one for none.
	Certificate func() *tls.Certificate
}

// Join calls Join with a token, or if that is empty with a certificate. Otherwise it sends none: an agent that has one and
// joins with a token does so because the certificate was refused.
func (c *Client) Join(ctx context.Context, certificate *tls.Certificate, r *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	if r.GetToken() != "" {
		certificate = &tls.Certificate{}
	}
	return call(ctx, c, func() *tls.Certificate { return certificate }, func(ctx context.Context, api agentv1.AgentServiceClient) (*agentv1.JoinResponse, error) {
		return api.Join(ctx, r)
	})
}

// Renew calls Renew.
func (c *Client) Renew(ctx context.Context, r *agentv1.RenewRequest) (*agentv1.RenewResponse, error) {
	return call(ctx, c, c.Certificate, func(ctx context.Context, api agentv1.AgentServiceClient) (*agentv1.RenewResponse, error) {
		return api.Renew(ctx, r)
	})
}

func call[R any](
	ctx context.Context, c *Client, certificate func() *tls.Certificate, do func(context.Context, agentv1.AgentServiceClient) (R, error),
) (R, error) {
	var none R
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := c.dial(certificate)
	if err != nil {
		return none, err
	}
	answer, err := do(ctx, agentv1.NewAgentServiceClient(conn))
	return answer, errors.Join(conn.explain(err), conn.Close())
}

// Session opens a session and closes it when use returns. The error is Unauthenticated if the certificate is refused.
func (c *Client) Session(ctx context.Context, use func(agentv1.AgentService_SessionClient) error) error {
	conn, err := c.dial(c.Certificate)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := agentv1.NewAgentServiceClient(conn).Session(ctx)
	if err == nil {
		err = use(stream)
	}
	return errors.Join(conn.explain(err), conn.Close())
}

// Answer calls Answer, and closes the call when use returns.
func (c *Client) Answer(ctx context.Context, use func(agentv1.AgentService_AnswerClient) error) error {
	conn, err := c.dial(c.Certificate)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := agentv1.NewAgentServiceClient(conn).Answer(ctx)
	if err == nil {
		err = use(stream)
	}
	if err == nil || errors.Is(err, io.EOF) { // then only the end of the call tells what is wrong
		_, err = stream.CloseAndRecv()
	}
	return errors.Join(conn.explain(err), conn.Close())
}

// connection is a connection to the control plane. refused is set if it refuses the client certificate.
type connection struct {
	*grpc.ClientConn
	refused *atomic.Bool
	watch   *reach.Watch
}

// explain returns err in words. It turns it into Unauthenticated if the connection broke because the certificate was refused, which
// gRPC does not tell.
func (c connection) explain(err error) error {
	if err != nil && c.refused.Load() {
		err = status.Errorf(codes.Unauthenticated, "the control plane refuses the certificate: %s", reach.Words(errors.New(status.Convert(err).Message())))
	}
	return c.watch.Explain(err)
}

func (c *Client) dial(certificate func() *tls.Certificate) (*connection, error) {
	roots, err := c.Roots()
	if err != nil {
		return nil, err
	}
	// TCP keepalive finds a dead host, and unlike HTTP/2 pings it cannot exceed a limit of the server.
	dialer := &net.Dialer{
		Timeout:         callTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	watch := &reach.Watch{Service: reach.Agents, Address: c.Address}
	security := newWatchedTLS(watch, &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: mesh.ServingName,
		RootCAs:    roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return certificate(), nil
		},
	})
	conn, err := grpc.NewClient("dns:///"+c.Address,
		grpc.WithTransportCredentials(security),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, "tcp", address)
			watch.Dialed(err)
			return conn, err
		}),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithIdleTimeout(0),
		grpc.WithReadBufferSize(bufferBytes), grpc.WithWriteBufferSize(bufferBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to the control plane at %s: %w", c.Address, err)
	}
	return &connection{ClientConn: conn, refused: security.refused, watch: watch}, nil
}
