package identity

import (
	"errors"
	"fmt"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Joined returns the proxies of all meshes that have joined: those to which a certificate has been issued, until Sweep
// forgets them.
func (a *Authority) Joined() ([]mesh.ID, error) {
	names, err := a.Meshes()
	if err != nil {
		return nil, err
	}
	var all []mesh.ID
	for _, name := range names {
		m, err := a.mesh(name)
		if errors.Is(err, ErrCANotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for dataplane := range m.records.all() {
			all = append(all, mesh.MakeID(name, dataplane))
		}
	}
	return all, nil
}

// WorkloadInUse returns the workload that the certificate in use of a proxy names, "" if that is not known, and whether the
// proxy has joined.
func (a *Authority) WorkloadInUse(proxy mesh.ID) (workload string, joined bool) {
	h, joined := a.history(proxy)
	return h.workload(), joined
}

// HasCertificate reports whether a certificate that was issued to the proxy is still valid.
func (a *Authority) HasCertificate(proxy mesh.ID) bool {
	h, joined := a.history(proxy)
	return joined && a.o.Now().Before(h.expires())
}

func (a *Authority) history(proxy mesh.ID) (history, bool) {
	meshName, dataplane := mesh.SplitID(proxy)
	m, err := a.mesh(meshName)
	if err != nil {
		return history{}, false
	}
	return m.records.of(dataplane)
}

// Sweep removes the records of proxies whose certificates have expired, except those that keep wants, and returns these
// proxies. It also logs CAs that expire soon. It should be called from time to time.
func (a *Authority) Sweep(keep func(proxy mesh.ID) bool) ([]mesh.ID, error) {
	names, err := a.Meshes()
	if err != nil {
		return nil, err
	}
	var forgotten []mesh.ID
	var problems []error
	for _, name := range names {
		m, err := a.mesh(name)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		a.warnExpiry(m)
		now := a.o.Now()
		for dataplane, h := range m.records.all() {
			id := mesh.MakeID(name, dataplane)
			if now.Before(h.expires()) || keep(id) {
				continue
			}
			gone, err := m.records.forget(dataplane, now)
			if err != nil {
				problems = append(problems, fmt.Errorf("mesh %q: %w", name, err))
			}
			if gone {
				forgotten = append(forgotten, id)
			}
		}
	}
	return forgotten, errors.Join(problems...)
}
