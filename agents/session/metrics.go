package session

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	unknown, unknownFeatures, unknownFields, replaced prometheus.Counter
}

func newMetrics(s *Sessions, registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{unknown: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sonde_agents_unknown_messages_total",
		Help: "Ignored messages of agents that this control plane does not know.",
	}), unknownFeatures: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sonde_agents_unknown_features_total",
		Help: "Features in the first message of a session that this control plane does not know.",
	}), unknownFields: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sonde_agents_unknown_fields_total",
		Help: "Messages of agents with ignored fields that this control plane does not know.",
	}), replaced: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sonde_sessions_replaced_total",
		Help: "Sessions that ended because the agent opened a newer one with another replica.",
	})}
	if registerer == nil {
		return m, nil
	}
	connected := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sonde_agents_connected",
		Help: "Agents that have a session with this replica.",
	}, func() float64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return float64(len(s.sessions))
	})
	for _, c := range []prometheus.Collector{m.unknown, m.unknownFeatures, m.unknownFields, m.replaced, connected} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of sessions: %w", err)
		}
	}
	return m, nil
}
