package identity

import (
	"errors"

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
		m, err := a.open(name, nil)
		if errors.Is(err, ErrCANotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		m.mu.Lock()
		for dataplane := range m.proxies {
			all = append(all, mesh.MakeID(name, dataplane))
		}
		m.mu.Unlock()
	}
	return all, nil
}

// WorkloadInUse returns the workload that the certificate in use of a proxy names, "" if that is not known, and whether the
// proxy has joined.
func (a *Authority) WorkloadInUse(proxy mesh.ID) (workload string, joined bool) {
	meshName, dataplane := mesh.SplitID(proxy)
	m, err := a.open(meshName, nil)
	if err != nil {
		return "", false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.proxies[dataplane]
	if r == nil {
		return "", false
	}
	return r.workload(), true
}
