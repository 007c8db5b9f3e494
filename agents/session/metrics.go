package session

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	unknown prometheus.Counter
}

func newMetrics(s *Sessions, registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{unknown: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sonde_agents_unknown_messages_total",
		Help: "Messages of agents that this control plane does not know, and ignored.",
	})}
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
	for _, c := range []prometheus.Collector{m.unknown, connected} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of sessions: %w", err)
		}
	}
	return m, nil
}
