package identity

import (
	"errors"
	"fmt"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// CheckClock returns an error about certificates of the control plane that are not valid yet: its clock is slow, or a
// clock was fast when they were created. Verifiers still accept them, see ca.TimeFor.
func (a *Authority) CheckClock() error {
	now := a.o.Now()
	var errs []error
	var proxies int
	var last time.Time
	var example mesh.ID
	for name, m := range a.all() {
		errs = append(errs, NotYetValid("the CA of mesh "+name, m.Current().Signing.Cert.NotBefore, now))
		for dataplane, h := range m.records.all() {
			leaf, ok := h.latest()
			if !ok || !now.Before(leaf.NotBefore) {
				continue
			}
			id := mesh.MakeID(name, dataplane)
			if proxies++; leaf.NotBefore.After(last) || leaf.NotBefore.Equal(last) && id < example {
				last, example = leaf.NotBefore, id
			}
		}
	}
	if proxies > 0 {
		errs = append(errs, NotYetValid(fmt.Sprintf("the certificate of %s, the latest of %d such proxies,",
			example, proxies), last, now))
	}
	return errors.Join(errs...)
}

// NotYetValid returns an error if a certificate is not valid yet.
func NotYetValid(what string, from, now time.Time) error {
	if !now.Before(from) {
		return nil
	}
	return fmt.Errorf("%s is not valid before %s, in %s: the clock of this control plane is slow, or a clock was fast when it was created",
		what, from.UTC().Format(time.RFC3339), from.Sub(now).Round(time.Second))
}
