package agents

import (
	"github.com/prometheus/client_golang/prometheus"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// awayAgents counts lost and stopped agents at the time of the scrape.
type awayAgents struct{ server *Server }

var (
	lostDesc = prometheus.NewDesc("sonde_agents_lost",
		"Joined proxies whose agent has no session, except drained ones. A proxy counts only 30 s after the end of its "+
			"session or the start of the control plane. Its endpoints stay in the mesh.",
		[]string{"mesh"}, nil)
	stoppedDesc = prometheus.NewDesc("sonde_agents_stopped", "Proxies whose agent drained and exited.",
		[]string{"mesh"}, nil)
)

// Describe implements prometheus.Collector.
func (c *awayAgents) Describe(ch chan<- *prometheus.Desc) {
	ch <- lostDesc
	ch <- stoppedDesc
}

// Collect implements prometheus.Collector.
func (c *awayAgents) Collect(ch chan<- prometheus.Metric) {
	states := c.server.States()
	for meshName, n := range c.server.count(states, adminv1.AgentState_LOST) {
		ch <- prometheus.MustNewConstMetric(lostDesc, prometheus.GaugeValue, float64(n), meshName)
	}
	for meshName, n := range c.server.count(states, adminv1.AgentState_STOPPED) {
		ch <- prometheus.MustNewConstMetric(stoppedDesc, prometheus.GaugeValue, float64(n), meshName)
	}
}
