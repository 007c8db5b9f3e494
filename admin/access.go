package admin

import (
	"context"

	"google.golang.org/grpc"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// Access says what callers may do who have no admin token, but another one.
type Access interface {
	// Authorize returns whom the token identifies, if that caller has the right. The error is a gRPC status, and does not contain the token: UNAUTHENTICATED
	// says why the token is refused, PERMISSION_DENIED which right is missing and for whom, UNAVAILABLE that this cannot be told now, RESOURCE_EXHAUSTED that
	// the source of the call has to wait.
	Authorize(ctx context.Context, token string, need adminv1.Right) (caller string, err error)
}

// byAdminToken is the caller with the admin token, in the log.
const byAdminToken = "admin token"

// calledStream is a stream with the context of its caller.
type calledStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // as that of the stream
}

// Context implements grpc.ServerStream.
func (s calledStream) Context() context.Context { return s.ctx }
