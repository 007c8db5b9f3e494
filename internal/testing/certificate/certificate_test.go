package certificate

import (
	"crypto/x509"
	"testing"
	"testing/synctest"
)

func TestServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config, roots := Server(t, "example.com")
		for name, valid := range map[string]bool{"example.com": true, "example.org": false} {
			_, err := config.Certificates[0].Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name})
			if (err == nil) != valid {
				t.Errorf("Verify() for %s: %v, want it to be valid: %t", name, err, valid)
			}
		}
	})
}
