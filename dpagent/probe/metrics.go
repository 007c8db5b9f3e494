package probe

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/api/mesh"
)

type metrics struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// newMetrics registers the metrics with r, which may be nil.
func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_probe_total", Help: "Checks of the pod's probes and hooks, by verdict.",
		}, []string{"container", "probe", "verdict"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sonde_probe_duration_seconds", Help: "How long checks took.",
			Buckets: []float64{.001, .01, .1, 1, 10},
		}, []string{"container", "probe"}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.total, m.duration} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of probes: %w", err)
		}
	}
	return m, nil
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

// probeName returns the type of a probe, or its handler if the type is not known.
func probeName(p mesh.Probe) string {
	switch {
	case p.Type != "":
		return string(p.Type)
	case p.TCPSocket != nil:
		return "tcpSocket"
	case p.GRPC != nil:
		return "grpc"
	}
	return "httpGet"
}
