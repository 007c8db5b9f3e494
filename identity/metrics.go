package identity

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	issued *prometheus.CounterVec
	// unauthenticated connections that are open, including those in their handshake.
	unauthenticated prometheus.Gauge
	// closed connections, by reason.
	closed *prometheus.CounterVec
}

func newMetrics(a *Authority, registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		issued: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_identity_certificates_issued_total",
			Help: "Certificates issued to proxies.",
		}, []string{"mesh"}),
		unauthenticated: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sonde_identity_unauthenticated_connections",
			Help: "Open connections of agents and proxies without a client certificate, those in their handshake included.",
		}),
		closed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_identity_connections_closed_total",
			Help: "Connections of agents and proxies closed by the control plane, by reason: limit (too many without a certificate), " +
				"handshake, unauthenticated (over their time without a certificate), expiring (their certificate ends soon).",
		}, []string{"reason"}),
	}
	if registerer == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.issued, m.unauthenticated, m.closed, &caExpiry{authority: a}} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of identity: %w", err)
		}
	}
	return m, nil
}

// caExpiry collects how long each CA is still valid, at the time of the scrape.
type caExpiry struct{ authority *Authority }

var caExpiryDesc = prometheus.NewDesc("sonde_identity_ca_expiry_seconds",
	"Seconds until the CA that signs for the mesh expires; of the control plane's serving CA where mesh is empty.",
	[]string{"mesh"}, nil)

// Describe implements prometheus.Collector.
func (c *caExpiry) Describe(ch chan<- *prometheus.Desc) { ch <- caExpiryDesc }

// Collect implements prometheus.Collector.
func (c *caExpiry) Collect(ch chan<- prometheus.Metric) {
	a := c.authority
	expiry := func(signing *ca, meshName string) {
		ch <- prometheus.MustNewConstMetric(caExpiryDesc, prometheus.GaugeValue, signing.cert.NotAfter.Sub(a.now()).Seconds(), meshName)
	}
	expiry(a.serving.ca, "")
	for _, m := range a.inMemory() {
		expiry(m.trust.Load().signing, m.mesh)
	}
}
