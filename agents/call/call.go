// Package call has what the methods of the agents' API need to know of a call: where it comes from, and which proxy of the view it is for.
// Errors are gRPC statuses.
package call

import (
	"context"
	"log/slog"
	"net"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// MaxText is how much of an agent's strings is kept in logs and in memory, in bytes.
const MaxText = 64

// Shorten cuts a string of an agent to MaxText.
func Shorten(s string) string { return cut.Text(s, MaxText) }

// Address returns the caller's IP address.
func Address(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return p.Addr.String()
	}
	return host
}

// Internal logs an error that is not for the caller, and returns the status for the caller.
func Internal(ctx context.Context, log *slog.Logger, what string, err error) error {
	log.ErrorContext(ctx, "agent request failed", "step", what, "err", err)
	return status.Errorf(codes.Internal, "%s: see the log of the control plane", what)
}

// CheckProcess returns an error if the instance with which an agent tells its process from others is too long.
func CheckProcess(instance string) error {
	if len(instance) > MaxText {
		return status.Errorf(codes.InvalidArgument, "instance has %d characters, at most %d are allowed", len(instance), MaxText)
	}
	return nil
}

// Bundle returns the message with a bundle.
func Bundle(b identity.Bundle) *agentv1.Bundle {
	return &agentv1.Bundle{Id: b.ID, Roots: b.Roots, Epoch: b.Epoch}
}
