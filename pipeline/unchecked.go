package pipeline

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/meshview"
)

var uncheckedDesc = prometheus.NewDesc("sonde_endpoints_unchecked",
	"Endpoints that get traffic although nothing checks their applications: they have no serviceProbe, and do not belong to a pod.", []string{"mesh"}, nil)

// uncheckedEndpoints counts these endpoints when metrics are collected. view returns the current view, nil before the
// first.
type uncheckedEndpoints struct{ view func() *meshview.View }

// Describe implements prometheus.Collector.
func (c uncheckedEndpoints) Describe(ch chan<- *prometheus.Desc) { ch <- uncheckedDesc }

// Collect implements prometheus.Collector.
func (c uncheckedEndpoints) Collect(ch chan<- prometheus.Metric) {
	v := c.view()
	if v == nil {
		return
	}
	for meshName, m := range v.Meshes {
		n := 0
		for _, s := range m.Services.All() {
			for _, e := range s.Endpoints {
				if v.Unchecked(m, e) {
					n++
				}
			}
		}
		ch <- prometheus.MustNewConstMetric(uncheckedDesc, prometheus.GaugeValue, float64(n), meshName)
	}
}
