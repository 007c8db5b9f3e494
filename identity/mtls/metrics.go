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
	// unauthenticated counts open connections, including those in their handshake.
	unauthenticated prometheus.Gauge
	// closed connections, by reason.
	closed *prometheus.CounterVec
	// aged counts ended connections that had reached their age.
	aged prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		unauthenticated: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sonde_identity_unauthenticated_connections",
			Help: "Open connections of agents and proxies without a client certificate, including those in their handshake.",
		}),
		closed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_identity_connections_closed_total",
			Help: "Connections of agents and proxies closed by the control plane, by reason: " +
				"limit (too many connections without a certificate or in their handshake, or more proxies than the limit of " +
				"open files allows), handshake (failed or too slow), unauthenticated (too long without a certificate), expiring " +
				"(the certificate expires soon), identity (too many connections of one proxy), away (this replica temporarily " +
				"serves no proxies, another one does).",
		}, []string{"reason"}),
		aged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonde_connections_aged_total",
			Help: "Connections of agents and proxies that ended because they had reached --connection-age.",
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
