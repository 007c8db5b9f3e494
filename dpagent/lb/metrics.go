package lb

import "github.com/prometheus/client_golang/prometheus"

// metrics of a Server.
type metrics struct {
	healthz, livez *prometheus.CounterVec
	draining       *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		healthz: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_lb_healthz_total", Help: "Responses to load balancers at /healthz, by status code.",
		}, []string{"code"}),
		livez: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_lb_livez_total", Help: "Responses to load balancers at /livez, by status code.",
		}, []string{"code"}),
		draining: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sonde_lb_draining",
			Help: "1 while this reason to get no new traffic applies: terminating, node or administrator; served_on: the proxy keeps serving nevertheless.",
		}, []string{"reason"}),
	}
	for _, total := range []*prometheus.CounterVec{m.healthz, m.livez} {
		total.WithLabelValues("200")
		total.WithLabelValues("503")
	}
	m.drains(map[string]bool{reasonTerminating: false, reasonNode: false, reasonAdministrator: false,
		reasonServedOn: false})
	r.MustRegister(m.healthz, m.livez, m.draining)
	return m
}

func (m *metrics) drains(reasons map[string]bool) {
	for reason, applies := range reasons {
		value := 0.0
		if applies {
			value = 1
		}
		m.draining.WithLabelValues(reason).Set(value)
	}
}
