package identity

import (
	"errors"
	"fmt"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// CheckClock returns which certificates that the control plane has made are not valid yet: its clock is behind, or was ahead when it made them. They are
// accepted all the same, see ca.TimeFor.
func (a *Authority) CheckClock() error {
	now := a.o.Now()
	var errs []error
	var proxies int
	var last time.Time
	var example mesh.ID
	for name, m := range a.all() {
		errs = append(errs, NotYetValid("the CA of mesh "+name, m.Current().Signing.Cert.NotBefore, now))
		for dataplane, h := range m.records.all() {
			leaf, known := h.latest()
			if !known || !now.Before(leaf.NotBefore) {
				continue
			}
			id := mesh.MakeID(name, dataplane)
			if proxies++; leaf.NotBefore.After(last) || leaf.NotBefore.Equal(last) && id < example {
				last, example = leaf.NotBefore, id
			}
		}
	}
	if proxies > 0 {
		errs = append(errs, NotYetValid(fmt.Sprintf("the certificate of %s, the latest of %d such proxies,", example, proxies), last, now))
	}
	return errors.Join(errs...)
}

// NotYetValid returns an error if a certificate is not valid yet.
func NotYetValid(what string, from, now time.Time) error {
	if !now.Before(from) {
		return nil
	}
	return fmt.Errorf("%s is not valid before %s, in %s: the clock of this control plane is behind, or a clock was ahead when it was made",
		what, from.UTC().Format(time.RFC3339), from.Sub(now).Round(time.Second))
}
