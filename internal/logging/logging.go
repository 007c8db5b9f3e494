// Package logging provides the log of the programs, as JSON or as text, with human-readable values.
package logging

import (
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/reach"
	"github.com/sonde-mesh/sonde/internal/terminal"
)

// Format of a log, and the value of --log-format.
type Format string

// Formats. Auto is Text on a terminal and JSON otherwise.
const (
	Auto Format = ""
	Text Format = "text"
	JSON Format = "json"
)

var errFormat = errors.New("must be text or json")

// Set implements pflag.Value.
func (f *Format) Set(text string) error {
	if set := Format(text); set != Text && set != JSON {
		return errFormat
	}
	*f = Format(text)
	return nil
}

// String implements pflag.Value.
func (f *Format) String() string { return string(*f) }

// Type implements pflag.Value.
func (*Format) Type() string { return "format" }

// For returns the format of a log that is written to w: Text or JSON.
func (f Format) For(w io.Writer) Format {
	switch {
	case f != Auto:
		return f
	case terminal.Is(w):
		return Text
	}
	return JSON
}

// New returns a logger that writes to w at this level and above. Durations are texts such as 1m30s, and errors have no
// gRPC formatting. Lines that callers and proxies can cause are limited, so that no caller can fill the log.
func New(w io.Writer, level slog.Level, f Format) *slog.Logger {
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: replace}
	if f.For(w) == Text {
		return slog.New(limit(slog.NewTextHandler(w, options)))
	}
	return slog.New(limit(slog.NewJSONHandler(w, options)))
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

// round drops insignificant digits: below a millisecond for seconds, below a microsecond for milliseconds.
func round(d time.Duration) time.Duration {
	switch {
	case d.Abs() >= time.Second:
		return d.Round(time.Millisecond)
	case d.Abs() >= time.Millisecond:
		return d.Round(time.Microsecond)
	}
	return d
}
