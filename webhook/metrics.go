package webhook

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Results of a request.
const (
	resultAllowed     = "allowed"     // allowed without a change
	resultPatched     = "patched"     // allowed with a patch
	resultDenied      = "denied"      // the object is invalid
	resultMalformed   = "malformed"   // not an AdmissionReview for this path
	resultUnavailable = "unavailable" // a cache has not synced yet, or too many requests
	resultFailed      = "failed"      // internal error of the server
)

var results = []string{resultAllowed, resultPatched, resultDenied, resultMalformed, resultUnavailable, resultFailed}

// Values of the label webhook.
const (
	webhookInject   = "inject"
	webhookValidate = "validate"
)

type metrics struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics() *metrics {
	m := &metrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_webhook_requests_total",
			Help: "Admission requests, by webhook (inject or validate) and result: allowed, patched, denied, malformed, unavailable or failed.",
		}, []string{"webhook", "result"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "sonde_webhook_request_duration_seconds",
			Help:    "Duration of admission requests, from their header to the end of the response.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .05, .25, 1, 5},
		}, []string{"webhook"}),
	}
	// Create all series now, so that rate() includes their first request.
	for _, webhook := range []string{webhookInject, webhookValidate} {
		for _, result := range results {
			m.total.WithLabelValues(webhook, result)
		}
	}
	return m
}

// register does nothing if the registerer is nil.
func (m *metrics) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	for _, c := range []prometheus.Collector{m.total, m.duration} {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

func (m *metrics) observe(webhook, result string, took time.Duration) {
	m.total.WithLabelValues(webhook, result).Inc()
	m.duration.WithLabelValues(webhook).Observe(took.Seconds())
}
