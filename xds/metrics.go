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

// typeLabel returns the metric label of a type. All unserved types share one label, since proxies choose their names.
func typeLabel(t resource.Type) string {
	if !slices.Contains(resource.Types(), t) {
		return "other"
	}
	return t.Short()
}

// newMetrics registers the metrics with r, which may be nil. late returns how many streams wait too long for an ACK or
// NACK; refused returns how many resources of each type are refused now.
func newMetrics(r prometheus.Registerer, late func() float64, refused func() map[resource.Type]int) *metrics {
	m := &metrics{
		streams: prometheus.NewGauge(
			prometheus.GaugeOpts{Name: "sonde_xds_streams", Help: "ADS streams that are open and authorised."}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_xds_requests_total", Help: "Requests received from proxies, ACKs and NACKs included.",
		}, []string{"type"}),
		responses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_xds_responses_total", Help: "Responses sent to proxies.",
		}, []string{"type"}),
		resources: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_xds_resources_total", Help: "Resources sent to proxies.",
		}, []string{"type"}),
		nacks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_xds_nacks_total", Help: "Responses and resources that proxies rejected.",
		}, []string{"type"}),
		rejected: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonde_xds_streams_rejected_total",
			Help: "Streams rejected because they named no node, or a node that the peer may not use.",
		}),
	}
	for _, perType := range []*prometheus.CounterVec{m.requests, m.responses, m.resources, m.nacks} {
		for _, t := range resource.Types() {
			perType.WithLabelValues(t.Short())
		}
	}
	if r != nil {
		r.MustRegister(m.streams, m.requests, m.responses, m.resources, m.nacks, m.rejected,
			prometheus.NewGaugeFunc(
				prometheus.GaugeOpts{
					Name: "sonde_xds_streams_late", Help: "ADS streams whose proxies have not acknowledged a response in time."}, late),
			refusedResources(refused))
	}
	return m
}

var refusedDesc = prometheus.NewDesc("sonde_xds_refused",
	"Resources whose newest version a proxy refuses now: the proxy keeps the previous version. sondectl get proxies names them.",
	[]string{"type"}, nil)

// refusedResources counts the refused resources when metrics are collected.
type refusedResources func() map[resource.Type]int

// Describe implements prometheus.Collector.
func (refusedResources) Describe(ch chan<- *prometheus.Desc) { ch <- refusedDesc }

// Collect implements prometheus.Collector.
func (r refusedResources) Collect(ch chan<- prometheus.Metric) {
	refused := r()
	for _, t := range resource.Types() {
		ch <- prometheus.MustNewConstMetric(refusedDesc, prometheus.GaugeValue, float64(refused[t]), t.Short())
	}
}
