package controlplane

import (
	"context"
	"crypto/tls"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/servingca"
	"github.com/sonde-mesh/sonde/controller/webhookconfig"
	"github.com/sonde-mesh/sonde/identity/serving"
)

// webhookCertificate is the certificate of the webhook, signed by the control plane's CA, or from files of another
// program.
type webhookCertificate struct {
	tls     *tls.Config
	ca      func() []byte
	changed <-chan struct{} // receives after the CA has changed; nil means never
	tasks   []func(context.Context) error
}

func (c *cluster) webhookCertificate() (webhookCertificate, error) {
	k := c.cp.o.Kubernetes
	if k.WebhookCertDir == "" {
		return webhookCertificate{tls: c.cp.serving.TLS(), ca: c.cp.serving.CA, changed: c.cp.serving.Changed()}, nil
	}
	files, err := serving.OpenFiles(serving.FilesOptions{
		Directory: k.WebhookCertDir, NeedCA: k.WebhookConfiguration != "", Name: k.Service + "." + k.Namespace + ".svc",
		Logger: c.cp.o.Logger, Registerer: c.cp.registry, Loop: c.webhookFiles,
	})
	if err != nil {
		return webhookCertificate{}, &mesh.FieldError{Field: "Kubernetes.WebhookCertDir", Value: k.WebhookCertDir, Err: err}
	}
	return webhookCertificate{tls: files.TLS(), ca: files.CA, changed: files.Changed(),
		tasks: []func(context.Context) error{files.Run}}, nil
}

// webhookCheck returns the check of a certificate.
func (c *cluster) webhookCheck(certificate webhookCertificate) webhookconfig.Check {
	k := c.cp.o.Kubernetes
	w := webhookconfig.Check{
		Certificate: func() (*tls.Certificate, error) { return certificate.tls.GetCertificate(nil) },
		CA:          certificate.ca, Name: k.Service + "." + k.Namespace + ".svc", Now: c.cp.o.now,
	}
	if k.WebhookCertDir == "" {
		w.Signing = c.cp.serving.Signing
	}
	if k.WebhookConfiguration != "" {
		w.Bundles = c.webhookBundles
	}
	return w
}

// webhookBundles returns the CA bundle of each webhook in the API server.
func (c *cluster) webhookBundles(ctx context.Context) ([][]byte, error) {
	return webhookconfig.Bundles(ctx, c.client, c.cp.o.Kubernetes.WebhookConfiguration)
}

// servingWaits describes what a rotation of the serving CA waits for on Kubernetes: clients must find the CAs, and API
// servers must have them, unless another program signs the webhook's certificate or manages its configurations.
func (c *cluster) servingWaits() []func(context.Context, serving.Rotation) []string {
	k := c.cp.o.Kubernetes
	waits := []func(context.Context, serving.Rotation) []string{func(ctx context.Context, _ serving.Rotation) []string {
		return servingca.Waits(ctx, c.client, k.Namespace, c.cp.serving.CA())
	}}
	if k.WebhookCertDir == "" && k.WebhookConfiguration != "" {
		w := &webhookconfig.Trust{CA: c.cp.serving.CA, Now: c.cp.o.now, Bundles: c.webhookBundles}
		waits = append(waits, w.Waits)
	}
	return waits
}
