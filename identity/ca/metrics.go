package ca

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// RegisterExpiry registers the metrics of how long a CA is still valid, and was made for; meshName is empty for the serving CA. Without a
// registerer it does nothing.
func RegisterExpiry(registerer prometheus.Registerer, meshName string, now func() time.Time, current func() *CA) error {
	if registerer == nil {
		return nil
	}
	expiry := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "sonde_identity_ca_expiry_seconds",
		Help:        "Seconds until the CA that signs for the mesh expires; of the control plane's serving CA where mesh is empty.",
		ConstLabels: prometheus.Labels{"mesh": meshName},
	}, func() float64 { return current().Cert.NotAfter.Sub(now()).Seconds() })
	validity := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "sonde_identity_ca_validity_seconds",
		Help:        "Seconds for which that CA was made, from its notBefore to its notAfter: what is soon depends on it.",
		ConstLabels: prometheus.Labels{"mesh": meshName},
	}, func() float64 { return current().Cert.NotAfter.Sub(current().Cert.NotBefore).Seconds() })
	for _, c := range []prometheus.Collector{expiry, validity} {
		if err := registerer.Register(c); err != nil {
			return fmt.Errorf("register metrics of the CA's expiry: %w", err)
		}
	}
	return nil
}

// RegisterEpoch registers the metric of the epoch of a set, which is the same in all replicas unless one has not heard of a change. meshName
// is as of RegisterExpiry. Without a registerer it does nothing.
func RegisterEpoch(registerer prometheus.Registerer, meshName string, current func() *Set) error {
	if registerer == nil {
		return nil
	}
	err := registerer.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "sonde_bundle_epoch",
		Help:        "Epoch of the bundle of the mesh, which grows with each change of its roots; of the control plane's serving CAs where mesh is empty.",
		ConstLabels: prometheus.Labels{"mesh": meshName},
	}, func() float64 { return float64(current().Epoch) }))
	if err != nil {
		return fmt.Errorf("register metric of the bundle's epoch: %w", err)
	}
	return nil
}
