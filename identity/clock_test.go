package identity

import (
	"crypto/x509"
	"testing"
	"time"
)

// With a clock that was set back, even before the start, proxies keep their certificates, and CheckClock returns an
// error until the clock is right.
func TestClockSetBack(t *testing.T) {
	clock, storage := newClock(), newMemory()
	a := open(t, storage, clock.Now)
	issue(t, a, "default", "db-1", time.Hour)
	clock.Add(time.Hour)
	c, _ := issue(t, a, "default", "web-1", 24*time.Hour)
	leaf := parse(t, c.Chain[0])
	if err := a.CheckClock(); err != nil {
		t.Errorf("CheckClock() = %v", err)
	}
	clock.Add(-2 * time.Hour)
	for name, a := range map[string]*Authority{"running": a, "after a restart": open(t, storage, clock.Now)} {
		if _, err := a.Verify([]*x509.Certificate{leaf}); err != nil {
			t.Errorf("%s: Verify() = %v", name, err)
		}
		contains(t, a.CheckClock(), "the certificate of default/web-1, the latest of 2 such proxies, is not valid before 2030-01-02T03:59:05Z, in 1h55m0s: the clock of this control plane is slow")
	}
	clock.Add(-48 * time.Hour)
	contains(t, a.CheckClock(), "the CA of mesh default is not valid before ")
	if _, err := a.Verify([]*x509.Certificate{leaf}); err != nil {
		t.Errorf("Verify() before the CA is valid: %v", err)
	}
	issue(t, a, "default", "web-1", time.Hour) // certificates from this clock
	clock.Add(50*time.Hour + 24*time.Hour + time.Second)
	if _, err := a.Verify([]*x509.Certificate{leaf}); err == nil {
		t.Error("an expired certificate is accepted")
	}
	if err := a.CheckClock(); err != nil {
		t.Errorf("CheckClock() of a clock that is right again = %v", err)
	}
}
