package main

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// libraryLog logs messages of the Kubernetes libraries, except about calls that the end of the command has cancelled:
// the command reports its own interruption.
type libraryLog struct{ slog.Handler }

func newLibraryLog(w io.Writer) libraryLog {
	return libraryLog{slog.NewTextHandler(printer.Safe(w), nil)}
}

// Handle implements slog.Handler.
func (l libraryLog) Handle(ctx context.Context, r slog.Record) error { //nolint:gocritic // slog.Handler
	ended := false
	r.Attrs(func(a slog.Attr) bool {
		err, ok := a.Value.Any().(error)
		ended = ok && errors.Is(err, context.Canceled)
		return !ended
	})
	if ended {
		return nil
	}
	return l.Handler.Handle(ctx, r) //nolint:wrapcheck // slog's, to the same caller
}

// WithAttrs implements slog.Handler.
func (l libraryLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return libraryLog{l.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (l libraryLog) WithGroup(name string) slog.Handler { return libraryLog{l.Handler.WithGroup(name)} }
