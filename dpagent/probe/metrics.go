package probe

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/api/mesh"
)

type metrics struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// newMetrics registers the metrics with r, which may be nil. Handlers with the same r share them.
func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_probe_total", Help: "Checks of the pod's probes and hooks, by verdict.",
		}, []string{"container", "probe", "verdict"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sonde_probe_duration_seconds", Help: "Duration of checks.",
			Buckets: []float64{.001, .01, .1, 1, 10},
		}, []string{"container", "probe"}),
	}
	if r == nil {
		return m, nil
	}
	var totalErr, durationErr error
	m.total, totalErr = register(r, m.total)
	m.duration, durationErr = register(r, m.duration)
	return m, errors.Join(totalErr, durationErr)
}

// register registers a collector with r. It returns the collector that was already registered, if any.
func register[C prometheus.Collector](r prometheus.Registerer, c C) (C, error) {
	err := r.Register(c)
	if earlier, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if same, ok := earlier.ExistingCollector.(C); ok {
			return same, nil
		}
	}
	if err != nil {
		return c, fmt.Errorf("register metrics of probes: %w", err)
	}
	return c, nil
}

// entryMetrics are the metrics of one entry, looked up once.
type entryMetrics struct {
	total    [verdicts]prometheus.Counter
	duration prometheus.Observer
}

func (m *metrics) of(p mesh.Probe) entryMetrics {
	name := probeName(p)
	e := entryMetrics{duration: m.duration.WithLabelValues(p.Container, name)}
	for v := range verdicts {
		e.total[v] = m.total.WithLabelValues(p.Container, name, v.String())
	}
	return e
}

func (m *entryMetrics) count(v verdict) { m.total[v].Inc() }

// observe counts a check.
func (m *entryMetrics) observe(v verdict, took time.Duration) {
	m.count(v)
	m.duration.Observe(took.Seconds())
}

// probeName returns the type of a probe, or its handler if the type is unknown.
func probeName(p mesh.Probe) string {
	if p.Type != "" {
		return string(p.Type)
	}
	return p.HandlerName()
}
