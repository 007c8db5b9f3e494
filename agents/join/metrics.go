package join

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	joins, renewals, unsupported *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		joins: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_agents_joins_total",
			Help: "Join requests, by gRPC status of the response.",
		}, []string{"result"}),
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_agents_renewals_total",
			Help: "Certificate renewal requests, by gRPC status of the response.",
		}, []string{"result"}),
		unsupported: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_agents_joins_unsupported_total",
			Help: "Joins of agents whose version this control plane does not support: too-old or too-new.",
		}, []string{"skew"}),
	}
	if registerer == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.joins, m.renewals, m.unsupported} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of joins: %w", err)
		}
	}
	return m, nil
}
