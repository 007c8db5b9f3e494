package ca

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// register registers the metrics of a set: the remaining and the total validity of the signing CA, and the epoch, which
// is equal at all replicas unless one has missed a change. meshName is empty for the serving CA. A nil registerer
// registers nothing.
func register(registerer prometheus.Registerer, meshName string, now func() time.Time, current func() *Set) error {
	if registerer == nil {
		return nil
	}
	expiry := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "sonde_identity_ca_expiry_seconds",
		Help:        "Seconds until the CA that signs for the mesh expires; for an empty mesh label, the control plane's serving CA.",
		ConstLabels: prometheus.Labels{"mesh": meshName},
	}, func() float64 { return current().Signing.Cert.NotAfter.Sub(now()).Seconds() })
	validity := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "sonde_identity_ca_validity_seconds",
		Help:        "Total validity in seconds, from notBefore to notAfter, of the CA that sonde_identity_ca_expiry_seconds is about.",
		ConstLabels: prometheus.Labels{"mesh": meshName},
	}, func() float64 { c := current().Signing.Cert; return c.NotAfter.Sub(c.NotBefore).Seconds() })
	epoch := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "sonde_bundle_epoch",
		Help:        "Epoch of the mesh's bundle, which grows with each change of its roots; for an empty mesh label, of the control plane's serving CAs.",
		ConstLabels: prometheus.Labels{"mesh": meshName},
	}, func() float64 { return float64(current().Epoch) })
	for _, metric := range []prometheus.Collector{expiry, validity, epoch} {
		if err := registerer.Register(metric); err != nil {
			return fmt.Errorf("register metrics of a CA: %w", err)
		}
	}
	return nil
}
