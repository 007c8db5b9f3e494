package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/dpagent/retry"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/internal/run"
)

// maxTimer is the longest timer of the renewer. It is short, since timers stop while the machine sleeps.
const maxTimer = 10 * time.Minute

// refusedBackoff is the longest retry delay after certificates that are not yet valid by this clock: each costs a
// signature of the control plane, and no retry helps before a clock is set.
const refusedBackoff = 5 * time.Minute

// Results of a renewal.
const (
	renewed = "ok"
	failed  = "error"
)

// Renewer renews the certificate before it expires.
type Renewer struct {
	identity *Identity
	o        RenewerOptions
	now      run.Signal
	renewals *prometheus.CounterVec
}

// RenewerOptions are the options of a Renewer.
type RenewerOptions struct {
	// Ask requests a certificate from the control plane. Required.
	Ask func(ctx context.Context, csr []byte) (*agentv1.Identity, error)
	// Renewed is called after each successful renewal. Required.
	Renewed func()
	// Logger to use. Required.
	Logger *slog.Logger
	// Registerer of the metrics. Required.
	Registerer prometheus.Registerer
	// Loop monitors each attempt. Default: none.
	Loop *heartbeat.Loop
}

// NewRenewer returns a Renewer of i.
func NewRenewer(i *Identity, o RenewerOptions) *Renewer {
	r := &Renewer{identity: i, o: o, now: run.NewSignal(), renewals: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sonde_dpagent_identity_renewals_total", Help: "Attempts to renew the certificate, by result.",
	}, []string{"result"})}
	for _, result := range []string{renewed, failed} {
		r.renewals.WithLabelValues(result) // initialise to 0, so that rate() sees the first failure
	}
	o.Registerer.MustRegister(r.renewals, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sonde_dpagent_identity_not_after_seconds", Help: "Unix time at which the certificate expires, 0 without one.",
	}, func() float64 {
		if leaf := i.Leaf(); leaf != nil {
			return float64(leaf.NotAfter.Unix())
		}
		return 0
	}), prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "sonde_dpagent_identity_older_bundles_total",
		Help: "Bundles that were rejected because they were older than the one in use.",
	}, func() float64 { return float64(i.older.Load()) }))
	return r
}

// Now makes Run renew now, whatever the certificate's age. It returns at once.
func (r *Renewer) Now() {
	r.now.Set()
}

// Run renews the certificate until ctx ends. The identity must already have a certificate.
func (r *Renewer) Run(ctx context.Context) error {
	for {
		leaf := r.identity.Leaf()
		due := dueAt(leaf, rand.Float64()) //nolint:gosec // jitter, not a secret
		if err := r.waitUntil(ctx, leaf.NotBefore, due); err != nil {
			return err
		}
		if err := r.renew(ctx); err != nil {
			return err
		}
	}
}

// dueAt returns when to renew: after two thirds of the certificate's validity, up to a twentieth of the validity
// earlier or later. spread from 0 to 1 selects the time in this range.
func dueAt(leaf *x509.Certificate, spread float64) time.Time {
	validity := leaf.NotAfter.Sub(leaf.NotBefore)
	return leaf.NotBefore.Add(time.Duration(float64(validity) * (2./3 + (spread-0.5)/10)))
}

// waitUntil waits until the renewal is due. It returns at once if the certificate is not yet valid, since the clock was
// ahead when it was issued.
func (r *Renewer) waitUntil(ctx context.Context, from, due time.Time) error {
	for {
		left := time.Until(due)
		if left <= 0 || time.Now().Before(from) {
			return nil
		}
		timer := time.NewTimer(min(left, maxTimer))
		select {
		case <-timer.C:
		case <-r.now:
			timer.Stop()
			return nil
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// renew retries until it succeeds or ctx ends.
func (r *Renewer) renew(ctx context.Context) error {
	backoff := retry.Backoff{Min: 200 * time.Millisecond, Max: 30 * time.Second}
	refused := retry.Backoff{Min: time.Second, Max: refusedBackoff}
	report := retry.Reporter{Logger: r.o.Logger}
	for {
		err := r.renewOnce(ctx)
		if err == nil {
			r.renewals.WithLabelValues(renewed).Inc()
			leaf := r.identity.Leaf()
			r.o.Logger.Info("renewed certificate", "serial", leaf.SerialNumber.Text(16), "expires", leaf.NotAfter)
			r.o.Renewed()
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.renewals.WithLabelValues(failed).Inc()
		report.Failed(ctx, slog.LevelError, "failed to renew certificate, keeping the old one", err)
		delay := &backoff
		if errors.Is(err, errNotYetValid) {
			delay = &refused
		}
		if err := run.Sleep(ctx, delay.Next()); err != nil {
			return err
		}
	}
}

func (r *Renewer) renewOnce(ctx context.Context) error {
	r.o.Loop.Begin()
	defer r.o.Loop.End()
	request, err := NewRequest()
	if err != nil {
		return err
	}
	answer, err := r.o.Ask(ctx, request.CSR)
	if err != nil {
		return fmt.Errorf("ask for a certificate: %w", err)
	}
	return r.identity.Accept(request, answer)
}
