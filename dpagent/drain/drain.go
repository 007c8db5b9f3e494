// Package drain lets Envoy's open requests and connections end before Envoy is stopped.
package drain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Envoy is the Envoy to drain. *envoy.Envoy implements it.
type Envoy interface {
	Poster
	Get(ctx context.Context, path string) ([]byte, error)
	// Running returns why the process is not running, nil if it is.
	Running() error
}

const (
	// BeginTimeout bounds Begin, since a pod that is being deleted waits for its hooks.
	BeginTimeout = 5 * time.Second
	pollEvery    = 100 * time.Millisecond
)

// Poster is the part of Envoy that Begin needs.
type Poster interface {
	Post(ctx context.Context, path string) error
}

// Begin makes Envoy send the clients of its inbound to other endpoints: each response announces the end of its
// connection. The listeners stay open, and requests whose application has exited are held until Envoy ends. If an older
// control plane has configured Envoy, it does not hold these requests, and Begin logs this. Repeating Begin has no
// effect.
func Begin(ctx context.Context, e Poster, logger *slog.Logger) error {
	if err := e.Post(ctx, "/drain_listeners?graceful&inboundonly&skip_exit"); err != nil {
		return fmt.Errorf("start to drain: %w", err)
	}
	err := e.Post(ctx, "/runtime_modify?"+mesh.RuntimeEnding+"=100")
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("hold requests without an application: %w", err)
	}
	if err != nil {
		logger.Warn("requests without an application are not held, an older control plane has configured envoy", "err", err)
	}
	return nil
}

// Run waits until open requests, and connections other than HTTP, have ended, and clients have read their responses. It
// ignores idle HTTP connections and requests without an application. Envoy serves new work until the inbound has been
// idle for the quiet time; then Run closes its listeners. Run returns when all work is done, or with the error of ctx
// if that ends first; any other error means that Envoy does not answer.
func Run(ctx context.Context, e Envoy, quiet time.Duration, logger *slog.Logger) error {
	if err := Begin(ctx, e, logger); err != nil {
		return err
	}
	if err := waitUntilIdle(ctx, e, quiet, active.inbound); err != nil {
		return err
	}
	logger.Info("inbound idle, closing its listeners")
	if err := e.Post(ctx, "/drain_listeners?inboundonly"); err != nil {
		return fmt.Errorf("close inbound listeners: %w", err)
	}
	if err := waitUntilIdle(ctx, e, 0, active.all); err != nil {
		return err
	}
	if err := e.Post(ctx, "/drain_listeners"); err != nil {
		return fmt.Errorf("close outbound listeners: %w", err)
	}
	return waitUntilIdle(ctx, e, 0, active.all)
}

func waitUntilIdle(ctx context.Context, e Envoy, quiet time.Duration, count func(active) int) error {
	since := time.Now()
	for {
		open, err := countActive(ctx, e)
		switch {
		case err != nil:
			if down := e.Running(); down != nil {
				return down
			}
			since = time.Now() // a busy Envoy may answer the next call
		case count(open) > 0:
			since = time.Now()
		case time.Since(since) >= quiet:
			return nil
		}
		if ended := run.Sleep(ctx, pollEvery); ended != nil {
			return errors.Join(fmt.Errorf("wait for %d requests and %d connections: %w",
				open.requests(), open.connections(), ended), err)
		}
	}
}
