package mtls

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Reasons for closing a connection, as values of the metric's label.
const (
	closedLimit           = "limit"
	closedHandshake       = "handshake"
	closedUnauthenticated = "unauthenticated"
	closedExpiring        = "expiring"
	closedIdentity        = "identity"
	closedAway            = "away"
)

type metrics struct {
	// unauthenticated connections that are open, including those in their handshake.
	unauthenticated prometheus.Gauge
	// closed connections, by reason.
	closed *prometheus.CounterVec
	// aged connections that have ended.
	aged prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		unauthenticated: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sonde_identity_unauthenticated_connections",
			Help: "Open connections of agents and proxies without a client certificate, those in their handshake included.",
		}),
		closed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_identity_connections_closed_total",
			Help: "Connections of agents and proxies closed by the control plane, by reason: limit (no place, or others needed it: no " +
				"certificate, or not yet, or more proxies than the limit of open files allows), handshake, unauthenticated (over their time without a certificate), expiring (their certificate " +
				"ends soon), identity (more of one proxy than it may have), away (this replica serves no proxies for now, another does).",
		}, []string{"reason"}),
		aged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonde_connections_aged_total",
			Help: "Connections of agents and proxies that have ended after --connection-age, when they were asked to connect again.",
		}),
	}
	if registerer == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.unauthenticated, m.closed, m.aged} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of mTLS: %w", err)
		}
	}
	return m, nil
}
