// Package drain empties an Envoy before it is stopped.
package drain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/retry"
)

// Envoy is what a drain needs of it. *envoy.Envoy is one.
type Envoy interface {
	Post(ctx context.Context, path string) error
	Get(ctx context.Context, path string) ([]byte, error)
	// Running returns why the process does not run, nil if it does.
	Running() error
}

const (
	pollEvery = 100 * time.Millisecond
	// quietFor is how long nothing may be open before the listeners close: clients that have not heard yet may still come.
	quietFor = time.Second
)

// Run lets what is open end: requests, and connections that are not HTTP. Idle HTTP connections do not count. New work
// is served until the inbound has been quiet for a second; then the listeners close. It returns when all is done, or with
// ctx's error when that ends first; other errors mean that Envoy does not answer.
func Run(ctx context.Context, e Envoy, logger *slog.Logger) error {
	if err := e.Post(ctx, "/drain_listeners?graceful&inboundonly&skip_exit"); err != nil {
		return fmt.Errorf("start to drain: %w", err)
	}
	if err := wait(ctx, e, quietFor, Open.inbound); err != nil {
		return err
	}
	logger.Info("inbound is quiet, its listeners close")
	if err := e.Post(ctx, "/drain_listeners?inboundonly"); err != nil {
		return fmt.Errorf("close inbound listeners: %w", err)
	}
	if err := wait(ctx, e, 0, Open.all); err != nil {
		return err
	}
	if err := e.Post(ctx, "/drain_listeners"); err != nil {
		return fmt.Errorf("close outbound listeners: %w", err)
	}
	return wait(ctx, e, 0, Open.all)
}

func wait(ctx context.Context, e Envoy, quiet time.Duration, count func(Open) int) error {
	since := time.Now()
	for {
		open, err := Count(ctx, e)
		switch {
		case err != nil:
			if down := e.Running(); down != nil {
				return down
			}
			since = time.Now() // it is busy, and may answer the next time
		case count(open) > 0:
			since = time.Now()
		case time.Since(since) >= quiet:
			return nil
		}
		if ended := retry.Wait(ctx, pollEvery); ended != nil {
			return errors.Join(fmt.Errorf("wait for %d requests and %d connections: %w", open.Requests, open.Connections, ended), err)
		}
	}
}
