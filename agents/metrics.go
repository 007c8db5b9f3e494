package agents

import (
	"github.com/prometheus/client_golang/prometheus"
)

// lostAgents counts lost agents at the time of the scrape.
type lostAgents struct{ server *Server }

var lostDesc = prometheus.NewDesc("sonde_agents_lost",
	"Proxies that have joined and whose agent has no session, except those that drained and those that may still come back "+
		"within 30 s of the end of their session or the start of the control plane. Their endpoints stay.",
	[]string{"mesh"}, nil)

// Describe implements prometheus.Collector.
func (c *lostAgents) Describe(ch chan<- *prometheus.Desc) { ch <- lostDesc }

// Collect implements prometheus.Collector.
func (c *lostAgents) Collect(ch chan<- prometheus.Metric) {
	for meshName, n := range c.server.lost() {
		ch <- prometheus.MustNewConstMetric(lostDesc, prometheus.GaugeValue, float64(n), meshName)
	}
}
