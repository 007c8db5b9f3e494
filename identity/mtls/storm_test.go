package mtls

import (
	"crypto/tls"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestStorm connects many more slow clients at once than there are places, from one address, with and without a
// certificate: all are served in turn, and none is rejected.
func TestStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, handshakes, takes = 150, 10, 400 * time.Millisecond
		s := serve(t, limits{handshakes: handshakes, unauthenticated: 2 * clients, identified: clients})
		pair, _ := s.certificate(time.Hour)
		pairs := []*tls.Certificate{{}, &pair}
		began := time.Now()
		var running sync.WaitGroup
		for n := range clients {
			running.Go(func() {
				config := s.tls()
				config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
					time.Sleep(takes)
					return pairs[n%len(pairs)], nil
				}
				if _, err := tls.Client(s.raw(), config).Read(make([]byte, 1)); err != nil {
					t.Errorf("client %d: %v", n, err)
				}
			})
		}
		running.Wait()
		if took, want := time.Since(began), clients/handshakes*takes; took != want {
			t.Errorf("all are served after %s, want %s with %d at a time", took, want, handshakes)
		}
		s.counts(closedLimit, 0)
	})
}
