package webhookconfig

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/identity/serving"
)

// apiServersDelay is how long API servers may take to use a stored webhook configuration, which each of them watches.
const apiServersDelay = 5 * time.Second

// Trust checks whether API servers verify the webhook with the trusted CAs of a rotation's step.
type Trust struct {
	CA func() []byte
	// Bundles returns the CA bundle of each webhook in the API server.
	Bundles func(context.Context) ([][]byte, error)
	Now     func() time.Time

	mu    sync.Mutex
	since time.Time // when the configurations first had the CAs with the ID trusted
	// trusted is the ID of the CAs in the configurations, "" if they have other CAs.
	trusted string
}

// Waits implements rotation.Options.ServingWaits.
func (w *Trust) Waits(ctx context.Context, r serving.Rotation) []string {
	bundles, err := w.Bundles(ctx)
	if err != nil {
		return []string{"the webhook configurations: " + err.Error()}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, bundle := range bundles {
		if !bytes.Equal(bundle, w.CA()) {
			w.trusted = ""
			return []string{"caBundle of the webhook configurations does not have the CAs of this step yet"}
		}
	}
	if w.trusted != r.Trusted {
		w.trusted, w.since = r.Trusted, w.Now()
	}
	if w.Now().Sub(w.since) < apiServersDelay {
		return []string{"API servers may not use caBundle of the webhook configurations yet"}
	}
	return nil
}
