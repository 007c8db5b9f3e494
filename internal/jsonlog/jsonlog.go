// Package jsonlog is the log of the programs: lines of JSON, in which values are human-readable.
package jsonlog

import (
	"io"
	"log/slog"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/reach"
)

// New returns a logger that writes to w from that level on. Durations are texts such as 1m30s, and errors have no forms of gRPC.
// Lines that callers and proxies can cause are limited, so that none of them can fill the log.
func New(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(limit(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: replace})))
}

func replace(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case time.Duration:
		a.Value = slog.StringValue(mesh.Duration(round(v)).String())
	case error:
		a.Value = slog.StringValue(reach.Words(v))
	}
	return a
}

// round leaves out digits without meaning: below a millisecond of what takes a second, below a microsecond of what takes a millisecond.
func round(d time.Duration) time.Duration {
	switch {
	case d.Abs() >= time.Second:
		return d.Round(time.Millisecond)
	case d.Abs() >= time.Millisecond:
		return d.Round(time.Microsecond)
	}
	return d
}
