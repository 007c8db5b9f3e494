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

// Check verifies the certificate of the webhook as API servers do. It is not safe for concurrent use.
type Check struct {
	Certificate func() (*tls.Certificate, error)
	// CA returns the CA of the certificate, nil if another program issues the certificate.
	CA func() []byte
	// Name under which API servers call the webhook.
	Name string
	// Bundles returns the CA bundle of each webhook in the API server. It is nil if another program manages them.
	Bundles func(context.Context) ([][]byte, error)
	Now     func() time.Time
	// Signing returns the control plane's CA that signed the certificate, nil if another program signs. The CA may be
	// in use before it is valid by this clock; the check clock reports that.
	Signing func() *x509.Certificate

	known [][]byte // the last bundles that the API server returned
}

// Run returns why the certificate is invalid for API servers, nil if it is valid.
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
	// While the API server is disconnected, use its last bundles: it does not call the webhook, and the bundles do not
	// change.
	if bundles, err := w.Bundles(ctx); err == nil {
		w.known = bundles
	}
	for _, bundle := range w.known {
		if len(bundle) == 0 {
			return errors.New("the CA is not in the webhook configuration yet")
		}
		if err := serving.Verify(certificate, serving.Bundle{Name: "caBundle of the webhook configuration", PEM: bundle},
			w.Name, now); err != nil {
			return fmt.Errorf("API servers do not trust it: %w", err)
		}
	}
	return nil
}
