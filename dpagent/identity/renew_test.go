package identity

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestDueAt(t *testing.T) {
	from := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	leaf := &x509.Certificate{NotBefore: from, NotAfter: from.Add(60 * time.Hour)}
	for spread, want := range map[float64]time.Duration{0: 37 * time.Hour, 0.5: 40 * time.Hour, 1: 43 * time.Hour} {
		if got := dueAt(leaf, spread).Sub(from).Round(time.Second); got != want {
			t.Errorf("dueAt(spread %v) = %s after its begin, want %s", spread, got, want)
		}
	}
}

// TestRenewalsAreCountedFromZero checks that the counters exist from the start: Prometheus sees no increase if a
// counter first appears with the value 1.
func TestRenewalsAreCountedFromZero(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := NewRenewer(&Identity{}, RenewerOptions{Registerer: registry})
	if got := testutil.CollectAndCount(r.renewals); got != 2 {
		t.Errorf("there are %d results before the first renewal, want ok and error", got)
	}
	for _, result := range []string{"ok", "error"} {
		if got := testutil.ToFloat64(r.renewals.WithLabelValues(result)); got != 0 {
			t.Errorf("%v renewals with result %s before the first", got, result)
		}
	}
}
