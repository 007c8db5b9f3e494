// Package call has helpers for the methods of the agents' API: the caller's address, the proxy that a call concerns,
// and gRPC statuses for errors.
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

// MaxText is the maximum length, in bytes, of an agent's strings in logs and in memory.
const MaxText = 64

// Shorten cuts an agent's string to MaxText.
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

// Internal logs an error that the caller must not see, and returns the status for the caller.
func Internal(ctx context.Context, log *slog.Logger, what string, err error) error {
	log.ErrorContext(ctx, "agent request failed", "step", what, "err", err)
	return status.Errorf(codes.Internal, "%s: see the log of the control plane", what)
}

// CheckProcess returns an error if instance, the agent's name for its process, is too long.
func CheckProcess(instance string) error {
	if len(instance) > MaxText {
		return status.Errorf(codes.InvalidArgument, "instance has %d characters, at most %d are allowed",
			len(instance), MaxText)
	}
	return nil
}

// Bundle returns the protobuf message for b.
func Bundle(b identity.Bundle) *agentv1.Bundle {
	return &agentv1.Bundle{Id: b.ID, Roots: b.Roots, Epoch: b.Epoch}
}
