package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/sonde-mesh/sonde/controller/webhookconfig"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/identity/serving"
)

// webhookCheck checks the certificate of the webhook as API servers do. It is for one goroutine at a time.
type webhookCheck struct {
	certificate func() (*tls.Certificate, error)
	// ca returns the CA of the certificate, nil if another program signs it.
	ca   func() []byte
	name string
	// bundles returns the CA bundle of each webhook that the API server has. nil if another program keeps these.
	bundles func(context.Context) ([][]byte, error)
	now     func() time.Time
	// signing returns the CA of the control plane that signs the certificate: it is used before it is valid by this clock, which check clock says. nil if
	// another program signs.
	signing func() *x509.Certificate

	known [][]byte // the bundles when the API server was last heard
}

func (w *webhookCheck) check(ctx context.Context) error {
	certificate, err := w.certificate()
	if err != nil {
		return err
	}
	now := w.now()
	if w.signing != nil {
		now = ca.TimeFor(now, certificate.Leaf, w.signing())
	}
	if err := serving.Verify(certificate, serving.Bundle{Name: "its CA", PEM: w.ca()}, w.name, now); err != nil {
		return err //nolint:wrapcheck // it names the certificate
	}
	if w.bundles == nil {
		return nil
	}
	if bundles, err := w.bundles(ctx); err == nil { // without the API server the webhook is not called, and the bundles are what they were
		w.known = bundles
	}
	for _, bundle := range w.known {
		if len(bundle) == 0 {
			return errors.New("the CA is not in the webhook configuration yet")
		}
		if err := serving.Verify(certificate, serving.Bundle{Name: "caBundle of the webhook configuration", PEM: bundle}, w.name, now); err != nil {
			return fmt.Errorf("API servers do not trust it: %w", err)
		}
	}
	return nil
}

// webhookCheck returns the check of a certificate.
func (c *cluster) webhookCheck(certificate webhookCertificate) webhookCheck {
	k := c.cp.o.Kubernetes
	w := webhookCheck{
		certificate: func() (*tls.Certificate, error) { return certificate.tls.GetCertificate(nil) },
		ca:          certificate.ca, name: k.Service + "." + k.Namespace + ".svc", now: c.cp.o.now,
	}
	if k.WebhookCertDir == "" {
		w.signing = c.cp.serving.Signing
	}
	if k.WebhookConfiguration != "" {
		w.bundles = func(ctx context.Context) ([][]byte, error) {
			return webhookconfig.Bundles(ctx, c.client, k.WebhookConfiguration)
		}
	}
	return w
}
