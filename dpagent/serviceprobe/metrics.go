package serviceprobe

import (
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics has one series per probe, which is removed with the probe.
type metrics struct {
	total *prometheus.CounterVec
	up    *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_service_probe_total", Help: "Checks of the applications behind inbounds with a serviceProbe, by verdict.",
		}, []string{"inbound", "verdict"}),
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sonde_service_probe_ready", Help: "1 while the serviceProbe of an inbound reports its application ready for traffic, otherwise 0.",
		}, []string{"inbound"}),
	}
	r.MustRegister(m.total, m.up)
	return m
}

// workerMetrics are the metrics of one probe.
type workerMetrics struct {
	all     *metrics
	inbound string
}

func (m *metrics) of(inbound netip.AddrPort) *workerMetrics {
	return &workerMetrics{m, inbound.String()}
}

func (m *workerMetrics) count(verdict string) { m.all.total.WithLabelValues(m.inbound, verdict).Inc() }

func (m *workerMetrics) ready(is bool) {
	value := 0.
	if is {
		value = 1
	}
	m.all.up.WithLabelValues(m.inbound).Set(value)
}

func (m *metrics) forget(inbound netip.AddrPort) {
	of := prometheus.Labels{"inbound": inbound.String()}
	m.total.DeletePartialMatch(of)
	m.up.DeletePartialMatch(of)
}
