// Package token reads the file with the token that the agent joins with, and warns before it expires.
package token

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/internal/run"
)

const (
	// maxBytes limits the size of the file. Tokens are much shorter.
	maxBytes = 64 << 10
	// checkEvery is how often Watch reads the file, since an operator may replace it.
	checkEvery = time.Minute
	// repeatAfter is the minimum time before the same warning is repeated.
	repeatAfter = 24 * time.Hour
)

// File is a file with a token. The agent reads only its validity; the control plane verifies the token.
type File struct {
	path   string
	logger *slog.Logger
	expiry prometheus.Gauge
	loop   *heartbeat.Loop
}

// New returns the file at path, without reading it. The loop monitors each check of Watch; it may be nil.
func New(path string, logger *slog.Logger, registerer prometheus.Registerer, loop *heartbeat.Loop) *File {
	f := &File{path: path, logger: logger, loop: loop, expiry: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "sonde_dpagent_token_not_after_seconds", Help: "Unix time at which the token expires, 0 if unknown.",
	})}
	registerer.MustRegister(f.expiry)
	return f
}

// Read returns the token. Errors never contain it.
func (f *File) Read() (string, error) {
	file, err := os.Open(f.path)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	defer func() { _ = file.Close() }() // opened for reading
	data, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	if len(data) > maxBytes {
		return "", fmt.Errorf("read token: %s has more than %d bytes", f.path, maxBytes)
	}
	return string(bytes.TrimSpace(data)), nil
}

// Expires returns when the token in the file expires. It does not check whether the control plane would accept it.
func (f *File) Expires() (time.Time, error) {
	l, err := f.validity()
	return l.expires, err
}

func (f *File) validity() (validity, error) {
	text, err := f.Read()
	if err != nil {
		return validity{}, err
	}
	l, err := parse(text)
	if err != nil {
		return validity{}, fmt.Errorf("read expiry of token in %s: %w", f.path, err)
	}
	return l, nil
}

// Watch updates the metric, and warns if the token expires soon or has expired, until ctx ends.
func (f *File) Watch(ctx context.Context) {
	var said warning
	var at time.Time
	for range run.Every(ctx, checkEvery) {
		f.loop.Begin()
		l, err := f.validity()
		f.expiry.Set(0)
		if err == nil {
			f.expiry.Set(float64(l.expires.Unix()))
		}
		now := time.Now()
		if w := warn(l, err, now); w != said || now.Sub(at) >= repeatAfter {
			w.log(ctx, f.logger, f.path)
			said, at = w, now
		}
		f.loop.End()
	}
}

// warning is a warning about a token. The zero value means no warning.
type warning struct {
	message string
	expires time.Time
	err     string
}

func warn(l validity, err error, now time.Time) warning {
	switch {
	case err != nil:
		return warning{message: "failed to find out when the dataplane token expires", err: err.Error()}
	case !now.Before(l.expires):
		return warning{message: "dataplane token has expired, this proxy can only join with its certificate",
			expires: l.expires}
	case l.endsSoon(now):
		return warning{message: "dataplane token expires soon, put a new one into its file", expires: l.expires}
	}
	return warning{}
}

func (w warning) log(ctx context.Context, logger *slog.Logger, path string) {
	switch {
	case w.message == "":
	case w.err != "":
		logger.WarnContext(ctx, w.message, "err", w.err) //nolint:sloglint // one of the constants of warn
	default:
		logger.WarnContext(ctx, w.message, "file", path, "expires", w.expires) //nolint:sloglint // as above
	}
}
