package health

import "github.com/prometheus/client_golang/prometheus"

// metrics of all checks.
type metrics struct {
	healthy  *prometheus.GaugeVec
	runs     *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		healthy: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sonde_healthcheck", Help: "Whether the last run of a health check passed (1) or failed (0). All run every 10 s. A check of severity warning does not fail its group.",
		}, []string{"group", "name", "severity"}),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_healthchecks_total", Help: "Runs of health checks, by status: success or error.",
		}, []string{"group", "name", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sonde_healthcheck_duration_seconds", Help: "Duration of health checks.",
			Buckets: []float64{0.001, 0.01, 0.1, 1},
		}, []string{"group", "name"}),
	}
	if r != nil {
		r.MustRegister(m.healthy, m.runs, m.duration)
	}
	return m
}

func (m *metrics) record(r *Result) {
	healthy, status, severity := 1.0, "success", "error"
	if r.Err != nil {
		healthy, status = 0, "error"
	}
	if r.Informational {
		severity = "warning"
	}
	m.healthy.WithLabelValues(string(r.Group), r.Name, severity).Set(healthy)
	m.runs.WithLabelValues(string(r.Group), r.Name, status).Inc()
	m.duration.WithLabelValues(string(r.Group), r.Name).Observe(r.Took.Seconds())
}
