package controlplane

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/servingca"
	"github.com/sonde-mesh/sonde/controller/webhookconfig"
	"github.com/sonde-mesh/sonde/identity/serving"
)

// apiServersDelay is how long API servers may take to use a webhook configuration that they have stored: each of them watches it.
const apiServersDelay = 5 * time.Second

// webhookTrust tells whether API servers verify the webhook by the CAs that are trusted in a step of a rotation.
type webhookTrust struct {
	ca func() []byte
	// bundles returns the CA bundle of each webhook that the API server has.
	bundles func(context.Context) ([][]byte, error)
	now     func() time.Time

	mu    sync.Mutex
	since time.Time // when the configurations were first seen with what trusted says
	// trusted is the ID of the CAs that the configurations have, "" if they have others.
	trusted string
}

// servingWaits returns what a rotation of the serving CA waits for on Kubernetes: that clients find the CAs, and that API servers have them, unless
// another program signs the certificate of the webhook, or keeps its configurations.
func (c *cluster) servingWaits() []func(context.Context, serving.Rotation) []string {
	k := c.cp.o.Kubernetes
	if k.WebhookCertDir != "" || k.WebhookConfiguration == "" {
		return []func(context.Context, serving.Rotation) []string{c.awaitPublished}
	}
	w := &webhookTrust{ca: c.cp.serving.CA, now: c.cp.o.now, bundles: func(ctx context.Context) ([][]byte, error) {
		return webhookconfig.Bundles(ctx, c.client, k.WebhookConfiguration)
	}}
	return []func(context.Context, serving.Rotation) []string{c.awaitPublished, w.waits}
}

// awaitPublished implements rotation.Options.ServingWaits: a client reads the CAs before each call, so that it needs those of this step alone.
func (c *cluster) awaitPublished(ctx context.Context, _ serving.Rotation) []string {
	is, err := servingca.Published(ctx, c.client, c.cp.o.Kubernetes.Namespace)
	switch {
	case err != nil:
		return []string{"ConfigMap " + mesh.ServingCAConfigMap + ": " + err.Error()}
	case is != string(c.cp.serving.CA()):
		return []string{"ConfigMap " + mesh.ServingCAConfigMap + " does not have the CAs of this step yet"}
	}
	return nil
}

// waits implements rotation.Options.ServingWaits.
func (w *webhookTrust) waits(ctx context.Context, r serving.Rotation) []string {
	bundles, err := w.bundles(ctx)
	if err != nil {
		return []string{"the webhook configurations: " + err.Error()}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, bundle := range bundles {
		if !bytes.Equal(bundle, w.ca()) {
			w.trusted = ""
			return []string{"caBundle of the webhook configurations does not have the CAs of this step yet"}
		}
	}
	if w.trusted != r.Trusted {
		w.trusted, w.since = r.Trusted, w.now()
	}
	if w.now().Sub(w.since) < apiServersDelay {
		return []string{"API servers may not use caBundle of the webhook configurations yet"}
	}
	return nil
}
