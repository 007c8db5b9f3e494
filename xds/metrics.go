package xds

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/xds/resource"
)

type metrics struct {
	streams   prometheus.Gauge
	requests  *prometheus.CounterVec
	responses *prometheus.CounterVec
	resources *prometheus.CounterVec
	nacks     *prometheus.CounterVec
	rejected  prometheus.Counter
}

// typeLabel returns the label of a type: one for all that are not served, since proxies choose their names.
func typeLabel(t resource.Type) string {
	if !slices.Contains(resource.Types(), t) {
		return "other"
	}
	return t.Short()
}

// newMetrics registers the metrics with r, which may be nil. late returns how many streams wait too long for an ACK or NACK.
func newMetrics(r prometheus.Registerer, late func() float64) *metrics {
	perType := func(name, help string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"type"})
		for _, t := range resource.Types() {
			v.WithLabelValues(t.Short())
		}
		return v
	}
	m := &metrics{
		streams:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "sonde_xds_streams", Help: "ADS streams that are open and authorised."}),
		requests:  perType("sonde_xds_requests_total", "Requests received from proxies, ACKs and NACKs included."),
		responses: perType("sonde_xds_responses_total", "Responses sent to proxies."),
		resources: perType("sonde_xds_resources_total", "Resources sent to proxies."),
		nacks:     perType("sonde_xds_nacks_total", "Responses and resources that proxies refused."),
		rejected:  prometheus.NewCounter(prometheus.CounterOpts{Name: "sonde_xds_streams_rejected_total", Help: "Streams refused because they named no node, or one that they may not be."}),
	}
	if r != nil {
		r.MustRegister(m.streams, m.requests, m.responses, m.resources, m.nacks, m.rejected,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sonde_xds_streams_late", Help: "ADS streams whose proxy has not answered a response in time."}, late))
	}
	return m
}
