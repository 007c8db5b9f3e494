package admin

import (
	"context"

	"google.golang.org/grpc"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// Access authorizes callers that have another token than the admin token.
type Access interface {
	// Authorize returns the caller that the token identifies, and an error for each right that the caller does not have
	// for certain. Errors are a gRPC status without the token: UNAUTHENTICATED for an invalid token, PERMISSION_DENIED
	// with the caller and the missing right, UNAVAILABLE if the check is not possible now, RESOURCE_EXHAUSTED if the
	// source of the call must wait.
	Authorize(ctx context.Context, token string, needs []adminv1.Right) (
		caller string, errs map[adminv1.Right]error, err error)
}

// byAdminToken is the name in logs of a caller with the admin token.
const byAdminToken = "admin token"

// calledStream is a stream with the context of its caller.
type calledStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // as in the stream
}

// Context implements grpc.ServerStream.
func (s calledStream) Context() context.Context { return s.ctx }
