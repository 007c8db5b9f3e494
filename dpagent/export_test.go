package dpagent

import (
	"context"
	"log/slog"
	"time"
)

// Impatient returns New for agents that wait no longer for Envoy than that.
func Impatient(limit time.Duration) func(context.Context, Options, *slog.Logger) (*Agent, error) {
	return func(ctx context.Context, o Options, logger *slog.Logger) (*Agent, error) {
		return newAgent(ctx, o, logger, limits{hang: limit, apply: limit})
	}
}
