package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// grpcBuffer is the size of a connection's buffers, in bytes. It does not affect what is sent.
const grpcBuffer = 4 << 10

// grpcProber calls grpc.health.v1.Health. The timeout covers the whole check.
// Source: kubernetes pkg/probe/grpc/grpc.go.
type grpcProber struct {
	dial    Dial
	address string
	service string
	timeout time.Duration
}

func newGRPCProber(podIP netip.Addr, g *mesh.GRPCProbe, timeout time.Duration, dial Dial) *grpcProber {
	return &grpcProber{
		dial:    dial.or(plainClose),
		address: hostPort(podIP, g.Port), service: g.Service, timeout: timeout,
	}
}

func (a *grpcProber) probe(ctx context.Context, by asker) result {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	var last lastDial
	conn, err := a.connect(ctx, by, &last)
	if err != nil {
		return a.unconnected(err, &last)
	}
	defer func() { _ = conn.Close() }() // the call has ended
	answer, err := healthpb.NewHealthClient(conn).Check(
		metadata.NewOutgoingContext(ctx, metadata.MD{}), &healthpb.HealthCheckRequest{Service: a.service})
	switch failed := last.err(); {
	case err != nil && by.rules&failsFast != 0 && failed != nil && status.Code(err) == codes.Unavailable:
		return a.unconnected(failed, &last)
	case err != nil:
		return result{
			verdict: failure, class: rpcClass(err), reason: a.rpcReason(err, by.rules), rpc: rpcAnswer{code: status.Code(err)},
		}
	case answer.GetStatus() != healthpb.HealthCheckResponse_SERVING:
		return result{
			verdict: failure, class: NotServing,
			reason: fmt.Sprintf("service unhealthy (responded with %s)", answer.GetStatus()),
			rpc:    rpcAnswer{status: answer.GetStatus()},
		}
	}
	return result{verdict: success}
}

// unconnected returns the result of a check without a connection. It is Errored if the agent caused the last failed
// attempt.
func (a *grpcProber) unconnected(err error, last *lastDial) result {
	switch failed := last.err(); {
	case IsAgentFault(failed):
		return failureOf(failed)
	case errors.Is(err, context.DeadlineExceeded):
		return result{verdict: failure, class: Timeout, reason: fmt.Sprintf("timeout: failed to connect service %s within %v: %v", a.address, a.timeout, err)}
	}
	return result{
		verdict: failure, class: classOf(err),
		reason: fmt.Sprintf("error: failed to connect service at %s: %s", a.address, reason(err)),
		// As in the kubelet's gRPC library, since the kubelet adds the rest of the reason itself.
		rpc: rpcAnswer{
			code: codes.Unavailable,
			text: fmt.Sprintf("connection error: desc = %q", "transport: Error while dialing: "+reason(err)),
		},
	}
}

// lastDial is the result of the last attempt to connect.
type lastDial struct{ failed atomic.Pointer[error] }

func (l *lastDial) set(err error) { l.failed.Store(&err) }

// err returns nil after a successful attempt, and before the first one.
func (l *lastDial) err() error {
	if err := l.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// connect returns a connection for a call. Under the rule failsFast it returns before the connection is established.
func (a *grpcProber) connect(ctx context.Context, by asker, last *lastDial) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithUserAgent(by.agent),
		grpc.WithTransportCredentials(credentialsOf(by.rules)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := a.dial(ctx, "tcp", address)
			last.set(err)
			return conn, err
		}),
		grpc.WithReadBufferSize(grpcBuffer), grpc.WithWriteBufferSize(grpcBuffer),
	}
	if by.rules&failsFast != 0 {
		return grpc.NewClient("passthrough:///"+a.address, options...) // without a resolver, as the kubelet
	}
	//nolint:staticcheck // deprecated, but the kubelet uses it: NewClient fails at the first refused connection
	return grpc.DialContext(ctx, a.address, append(options, grpc.WithBlock())...)
}

func credentialsOf(r rules) credentials.TransportCredentials {
	if r&asksTLS != 0 {
		return credentials.NewTLS(unverified())
	}
	return insecure.NewCredentials()
}

func rpcClass(err error) Class {
	if status.Code(err) == codes.DeadlineExceeded {
		return Timeout
	}
	return Failed
}

// rpcReason returns the reason of a failed call, without the message, which the application has written.
func (a *grpcProber) rpcReason(err error, r rules) string {
	switch status.Code(err) {
	case codes.Unimplemented:
		return "error: this server does not implement the grpc health protocol (grpc.health.v1.Health)"
	case codes.DeadlineExceeded:
		return fmt.Sprintf("timeout: health rpc did not complete within %v", a.timeout)
	case codes.Unavailable:
		if r&failsFast != 0 {
			return "error: failed to connect service at " + a.address
		}
	}
	return fmt.Sprintf("error: health rpc probe failed: rpc error: code = %s", status.Code(err))
}
