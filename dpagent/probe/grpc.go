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
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// grpcBuffer is the size of the buffers of a connection, in bytes. It does not affect what is sent.
const grpcBuffer = 4 << 10

// grpcProber calls grpc.health.v1.Health. The timeout is that of the whole check, and connecting is retried until then: a
// server that starts to listen in time passes.
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

func (a *grpcProber) probe(ctx context.Context, userAgent string) result {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	var fault atomic.Pointer[error] // of the agent, at the last attempt to connect
	conn, err := a.connect(ctx, userAgent, &fault)
	if err != nil {
		if why := fault.Load(); why != nil {
			return failureOf(*why)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return result{verdict: failure, class: Timeout, reason: fmt.Sprintf("timeout: failed to connect service %s within %v: %v", a.address, a.timeout, err)}
		}
		return result{verdict: failure, class: classOf(err), reason: fmt.Sprintf("error: failed to connect service at %s: %s", a.address, reason(err))}
	}
	defer func() { _ = conn.Close() }() // the call has ended
	answer, err := healthpb.NewHealthClient(conn).Check(
		metadata.NewOutgoingContext(ctx, metadata.MD{}), &healthpb.HealthCheckRequest{Service: a.service})
	switch {
	case err != nil:
		return result{verdict: failure, class: rpcClass(err), reason: a.rpcReason(err), rpc: rpcAnswer{code: status.Code(err)}}
	case answer.GetStatus() != healthpb.HealthCheckResponse_SERVING:
		return result{
			verdict: failure, class: NotServing, reason: fmt.Sprintf("service unhealthy (responded with %s)", answer.GetStatus()),
			rpc: rpcAnswer{status: answer.GetStatus()},
		}
	}
	return result{verdict: success}
}

func (a *grpcProber) connect(ctx context.Context, userAgent string, fault *atomic.Pointer[error]) (*grpc.ClientConn, error) {
	//nolint:staticcheck // deprecated, and what the kubelet does: NewClient fails at the first refused connection
	return grpc.DialContext(ctx, a.address,
		grpc.WithUserAgent(userAgent),
		grpc.WithBlock(), //nolint:staticcheck // as above
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := a.dial(ctx, "tcp", address)
			fault.Store(nil)
			if IsAgentFault(err) {
				fault.Store(&err)
			}
			return conn, err
		}),
		grpc.WithReadBufferSize(grpcBuffer), grpc.WithWriteBufferSize(grpcBuffer),
	)
}

func rpcClass(err error) Class {
	if status.Code(err) == codes.DeadlineExceeded {
		return Timeout
	}
	return Failed
}

// rpcReason returns the reason of a failed call, without the message, which comes from the application.
func (a *grpcProber) rpcReason(err error) string {
	switch code := status.Code(err); code {
	case codes.Unimplemented:
		return "error: this server does not implement the grpc health protocol (grpc.health.v1.Health)"
	case codes.DeadlineExceeded:
		return fmt.Sprintf("timeout: health rpc did not complete within %v", a.timeout)
	default:
		return fmt.Sprintf("error: health rpc probe failed: rpc error: code = %s", code)
	}
}
