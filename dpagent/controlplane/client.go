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
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
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

// Client opens a connection for each call and each session, so that each uses the newest certificate, and errors give
// the reason of a failed connection.
type Client struct {
	// Address of the control plane, host:port.
	Address string
	// Roots returns the CAs that verify the control plane. It is called for each connection.
	Roots func() (*x509.CertPool, error)
	// Certificate returns the client certificate, or an empty one to send none.
	Certificate func() *tls.Certificate
	// Dial connects to host:port. Default: the function Dial.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	mu      sync.Mutex
	session *connection // of the open session, nil without one
}

// Join calls Join with a token, or with the certificate if token is empty. With a token it sends no certificate, since
// the control plane may have rejected the certificate.
func (c *Client) Join(
	ctx context.Context, certificate *tls.Certificate, r *agentv1.JoinRequest,
) (*agentv1.JoinResponse, error) {
	if r.GetToken() != "" {
		certificate = &tls.Certificate{}
	}
	return call(ctx, c, func() *tls.Certificate { return certificate },
		func(ctx context.Context, api agentv1.AgentServiceClient) (*agentv1.JoinResponse, error) {
			return api.Join(ctx, r)
		})
}

// Renew calls Renew.
func (c *Client) Renew(ctx context.Context, r *agentv1.RenewRequest) (*agentv1.RenewResponse, error) {
	return call(ctx, c, c.Certificate,
		func(ctx context.Context, api agentv1.AgentServiceClient) (*agentv1.RenewResponse, error) {
			return api.Renew(ctx, r)
		})
}

func call[R any](
	ctx context.Context, c *Client, certificate func() *tls.Certificate,
	do func(context.Context, agentv1.AgentServiceClient) (R, error),
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

// Session opens a session and closes it when use returns. goAway is closed when the control plane asks the agent to
// open another session, since this one ends soon. The error is Unauthenticated if the control plane rejects the
// certificate.
func (c *Client) Session(
	ctx context.Context, use func(stream agentv1.AgentService_SessionClient, goAway <-chan struct{}) error,
) error {
	conn, err := c.dial(c.Certificate)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	goAway, watched := make(chan struct{}), make(chan struct{})
	defer func() { cancel(); <-watched }()
	go func() {
		defer close(watched)
		if awaitGoAway(ctx, conn) {
			close(goAway)
		}
	}()
	c.share(conn)
	stream, err := agentv1.NewAgentServiceClient(conn).Session(ctx)
	if err == nil {
		err = use(stream, goAway)
	}
	return errors.Join(conn.explain(err), c.endSession(conn))
}

// share makes conn the connection that carries answers to queries. The caller calls giveBack after use.
func (c *Client) share(conn *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn.users++
	c.session = conn
}

// borrow returns the connection of the session, nil without one. The caller calls giveBack after use.
func (c *Client) borrow() *connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != nil {
		c.session.users++
	}
	return c.session
}

// giveBack closes a connection when its last user has finished: an answer may outlast its session.
func (c *Client) giveBack(conn *connection) error {
	c.mu.Lock()
	conn.users--
	last := conn.users == 0
	c.mu.Unlock()
	if !last {
		return nil
	}
	return conn.Close()
}

// endSession stops the use of a connection for answers, and gives it back.
func (c *Client) endSession(conn *connection) error {
	c.mu.Lock()
	if c.session == conn {
		c.session = nil
	}
	c.mu.Unlock()
	return c.giveBack(conn)
}

// awaitGoAway waits until the server has sent GOAWAY, or the connection is broken. It returns false if ctx ends first.
// Calls continue after a GOAWAY, although gRPC no longer reports the connection as ready.
func awaitGoAway(ctx context.Context, conn *connection) bool {
	was := conn.GetState()
	for conn.WaitForStateChange(ctx, was) {
		if was == connectivity.Ready {
			return true
		}
		was = conn.GetState()
	}
	return false
}

// Answer calls Answer on the connection of the session, since only that replica of the control plane waits for the
// response. It closes the call when use returns.
func (c *Client) Answer(ctx context.Context, use func(agentv1.AgentService_AnswerClient) error) error {
	conn := c.borrow()
	if conn == nil {
		return errors.New("the session of the query has ended")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := agentv1.NewAgentServiceClient(conn).Answer(ctx)
	if err == nil {
		err = use(stream)
	}
	if err == nil || errors.Is(err, io.EOF) { // on io.EOF, only the end of the call has the reason
		_, err = stream.CloseAndRecv()
	}
	return errors.Join(conn.explain(err), c.giveBack(conn))
}

// connection is a connection to the control plane. refused is set if the control plane rejects the client certificate.
type connection struct {
	*grpc.ClientConn
	refused *atomic.Bool
	watch   *reach.Watch
	users   int // users of a session's connection, guarded by Client.mu
}

// explain describes the cause of err. It returns Unauthenticated if the connection broke because the control plane
// rejected the certificate, which gRPC does not report.
func (c connection) explain(err error) error {
	if err != nil && c.refused.Load() {
		err = status.Errorf(codes.Unauthenticated, "the control plane rejects the certificate: %s",
			reach.Words(errors.New(status.Convert(err).Message())))
	}
	return c.watch.Explain(err)
}

func (c *Client) dial(certificate func() *tls.Certificate) (*connection, error) {
	roots, err := c.Roots()
	if err != nil {
		return nil, err
	}
	dial := c.Dial
	if dial == nil {
		dial = Dial
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
			conn, err := dial(ctx, address)
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
