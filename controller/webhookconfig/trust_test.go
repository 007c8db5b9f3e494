package webhookconfig

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/identity/serving"
)

func TestRotationWaitsForAPIServers(t *testing.T) {
	now, trusts := time.Unix(1_900_000_000, 0), "old and new"
	var bundles [][]byte
	var failure error
	w := &Trust{
		CA: func() []byte { return []byte(trusts) }, Now: func() time.Time { return now },
		Bundles: func(context.Context) ([][]byte, error) { return bundles, failure },
	}
	waits := func(trusted string, want ...string) {
		t.Helper()
		if got := w.Waits(t.Context(), serving.Rotation{Progress: ca.Progress{Trusted: trusted}}); !slices.Equal(got, want) {
			t.Errorf("waits for %q, want %q", got, want)
		}
	}
	const missing, lag = "caBundle of the webhook configurations does not have the CAs of this step yet", "API servers may not use caBundle of the webhook configurations yet"
	bundles = [][]byte{[]byte("old and new"), []byte("old")}
	waits("both", missing)
	bundles[1] = []byte("old and new")
	waits("both", lag)
	now = now.Add(apiServersDelay - time.Second)
	waits("both", lag)
	failure = errors.New("forbidden")
	waits("both", "the webhook configurations: forbidden")
	failure = nil
	bundles[0] = nil // another program has written it
	waits("both", missing)
	now = now.Add(time.Second)
	bundles[0] = bundles[1]
	waits("both", lag)
	now = now.Add(apiServersDelay)
	waits("both")
	trusts = "new"
	waits("new", missing)
	bundles = [][]byte{[]byte("new")}
	waits("new", lag)
	now = now.Add(apiServersDelay)
	waits("new")
	bundles = nil // no configuration exists
	now = now.Add(apiServersDelay)
	waits("new")
}
