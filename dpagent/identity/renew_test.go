package identity

import (
	"crypto/x509"
	"testing"
	"time"
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
