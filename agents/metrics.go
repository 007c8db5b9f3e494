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
	for _, c := range []prometheus.Collector{m.joins, m.renewals, m.unknown, connected} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of agents: %w", err)
		}
	}
	return m, nil
}
