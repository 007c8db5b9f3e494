package mtls

import (
	"crypto/tls"
	"sync"
	"testing"
	"time"
)

// TestStorm connects many more clients at once from one address than there are places, with and without a certificate, on a machine that
// has them all to run: each is slow, and none is refused.
func TestStorm(t *testing.T) {
	const clients = 150
	l := patient()
	l.handshakes, l.unauthenticated, l.identified = 10, 2*clients, clients
	s := serve(t, l)
	pair, _ := s.certificate(time.Hour)
	configs := []*tls.Config{s.tls(), s.tls(pair)}
	var running sync.WaitGroup
	for n := range clients {
		running.Go(func() {
			c, err := tls.Dial("tcp", s.address, configs[n%len(configs)])
			if err != nil {
				t.Errorf("client %d: %v", n, err)
				return
			}
			defer func() { _ = c.Close() }()
			if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Error(err)
			}
			if _, err := c.Read(make([]byte, 1)); err != nil {
				t.Errorf("client %d: %v", n, err)
			}
		})
	}
	running.Wait()
}
