package webhookconfig

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/identity/serving"
)

// Check checks the certificate of the webhook as API servers do. It is for one goroutine at a time.
type Check struct {
	Certificate func() (*tls.Certificate, error)
	// CA returns the CA of the certificate, nil if another program signs it.
	CA func() []byte
	// Name by which API servers call the webhook.
	Name string
	// Bundles returns the CA bundle of each webhook that the API server has. nil if another program keeps these.
	Bundles func(context.Context) ([][]byte, error)
	Now     func() time.Time
	// Signing returns the CA of the control plane that signs the certificate: it is used before it is valid by this clock, which check clock says. nil if
	// another program signs.
	Signing func() *x509.Certificate

	known [][]byte // the bundles when the API server was last heard
}

// Run returns what is wrong with the certificate, nil if nothing is.
func (w *Check) Run(ctx context.Context) error {
	certificate, err := w.Certificate()
	if err != nil {
		return err
	}
	now := w.Now()
	if w.Signing != nil {
		now = ca.TimeFor(now, certificate.Leaf, w.Signing())
	}
	if err := serving.Verify(certificate, serving.Bundle{Name: "its CA", PEM: w.CA()}, w.Name, now); err != nil {
		return err //nolint:wrapcheck // it names the certificate
	}
	if w.Bundles == nil {
		return nil
	}
	if bundles, err := w.Bundles(ctx); err == nil { // without the API server the webhook is not called, and the bundles are what they were
		w.known = bundles
	}
	for _, bundle := range w.known {
		if len(bundle) == 0 {
			return errors.New("the CA is not in the webhook configuration yet")
		}
		if err := serving.Verify(certificate, serving.Bundle{Name: "caBundle of the webhook configuration", PEM: bundle}, w.Name, now); err != nil {
			return fmt.Errorf("API servers do not trust it: %w", err)
		}
	}
	return nil
}
