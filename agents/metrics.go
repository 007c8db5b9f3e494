package agents

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	joins, renewals *prometheus.CounterVec
	unknown         prometheus.Counter
}

func newMetrics(s *Server, registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		joins: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_agents_joins_total",
			Help: "Agents that asked to join, by the gRPC status that they got.",
		}, []string{"result"}),
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_agents_renewals_total",
			Help: "Agents that asked for a new certificate, by the gRPC status that they got.",
		}, []string{"result"}),
		unknown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonde_agents_unknown_messages_total",
			Help: "Messages of agents that this control plane does not know, and ignored.",
		}),
	}
	if registerer == nil {
		return m, nil
	}
	connected := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sonde_agents_connected",
		Help: "Agents with a session.",
	}, func() float64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return float64(len(s.sessions))
	})
	for _, c := range []prometheus.Collector{m.joins, m.renewals, m.unknown, connected, &lostAgents{s}} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of agents: %w", err)
		}
	}
	return m, nil
}

// lostAgents counts lost agents at the time of the scrape.
type lostAgents struct{ server *Server }

var lostDesc = prometheus.NewDesc("sonde_agents_lost",
	"Proxies that have joined and whose agent has no session, except those that drained and those that may still come back "+
		"after the start of the control plane. Their endpoints stay.",
	[]string{"mesh"}, nil)

// Describe implements prometheus.Collector.
func (c *lostAgents) Describe(ch chan<- *prometheus.Desc) { ch <- lostDesc }

// Collect implements prometheus.Collector.
func (c *lostAgents) Collect(ch chan<- prometheus.Metric) {
	for meshName, n := range c.server.lost() {
		ch <- prometheus.MustNewConstMetric(lostDesc, prometheus.GaugeValue, float64(n), meshName)
	}
}
