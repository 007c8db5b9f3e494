// Package caller identifies the caller of a call of the admin API.
package caller

import (
	"context"
	"log/slog"

	"google.golang.org/grpc/peer"
)

type nameKey struct{}

// With returns the context of a call by the named caller.
func With(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, nameKey{}, name)
}

// Name returns the name that With stored.
func Name(ctx context.Context) string {
	name, _ := ctx.Value(nameKey{}).(string)
	return name
}

// Address returns the address of the caller, "" without a network.
func Address(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

// Log returns a logger that adds the caller to each line, for calls that change something.
func Log(ctx context.Context, log *slog.Logger) *slog.Logger {
	return log.With("peer", Address(ctx), "caller", Name(ctx))
}
