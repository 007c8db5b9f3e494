package serving

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/identity/ca"
)

const certificateValidity = 30 * 24 * time.Hour

// ownLeaf is a certificate of the control plane itself.
type ownLeaf struct {
	of       *Certificate // state with the CA that signs
	template x509.Certificate

	mu     sync.Mutex
	leaf   *tls.Certificate
	signer string // ID of the CA that signed leaf
	renew  renewal
}

// get returns the certificate. It creates a new one when two thirds of the old one's validity have passed, or when
// another CA signs.
func (l *ownLeaf) get() (*tls.Certificate, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, signing := l.of.o.Now(), l.of.shared.Current().Signing
	if l.signer == signing.ID && !l.renew.due(now) {
		return l.leaf, nil
	}
	key, template := ca.NewKey(), l.template
	leaf, err := signing.SignOwn(&template, key.Public(), now, certificateValidity)
	if err != nil {
		return nil, fmt.Errorf("create certificate of %s: %w", template.Subject.CommonName, err)
	}
	l.leaf = &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	l.signer, l.renew = signing.ID, renewalOf(leaf, now)
	return l.leaf, nil
}

// renewal is when two thirds of a certificate's validity have passed: on the wall clock, since the monotonic clock
// stops while a machine sleeps, and on the monotonic clock, since the wall clock may be set back.
type renewal struct{ wall, monotonic time.Time }

func renewalOf(leaf *x509.Certificate, now time.Time) renewal {
	left := leaf.NotAfter.Sub(now) * 2 / 3
	return renewal{wall: now.Add(left).Round(0), monotonic: time.Now().Add(left)}
}

func (r renewal) due(now time.Time) bool {
	return !now.Before(r.wall) || !time.Now().Before(r.monotonic)
}
