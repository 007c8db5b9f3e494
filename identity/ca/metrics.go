package ca

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// register registers the metrics of a set: how long the CA that signs is still valid, and was made for, and the epoch,
// which is the same in all replicas unless one has not heard of a change. meshName is empty for the serving CA. Without
// a registerer it does nothing.
func register(registerer prometheus.Registerer, meshName string, now func() time.Time, current func() *Set) error {
	if registerer == nil {
		return nil
	}
	expiry := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "sonde_identity_ca_expiry_seconds",
		Help:        "Seconds until the CA that signs for the mesh expires; of the control plane's serving CA where mesh is empty.",
		ConstLabels: prometheus.Labels{"mesh": meshName},
	}, func() float64 { return current().Signing.Cert.NotAfter.Sub(now()).Seconds() })
	validity := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "sonde_identity_ca_validity_seconds",
		Help:        "Seconds for which that CA was made, from its notBefore to its notAfter: what is soon depends on it.",
		ConstLabels: prometheus.Labels{"mesh": meshName},
	}, func() float64 { c := current().Signing.Cert; return c.NotAfter.Sub(c.NotBefore).Seconds() })
	epoch := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "sonde_bundle_epoch",
		Help:        "Epoch of the bundle of the mesh, which grows with each change of its roots; of the control plane's serving CAs where mesh is empty.",
		ConstLabels: prometheus.Labels{"mesh": meshName},
	}, func() float64 { return float64(current().Epoch) })
	for _, metric := range []prometheus.Collector{expiry, validity, epoch} {
		if err := registerer.Register(metric); err != nil {
			return fmt.Errorf("register metrics of a CA: %w", err)
		}
	}
	return nil
}
