package identity

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
)

// Joined returns the proxies of all meshes that are known to have joined: those to which a certificate has been issued, until Sweep
// forgets them. Without Options.Records it knows only those that have joined, or reported, since this process started.
func (a *Authority) Joined() []mesh.ID {
	var all []mesh.ID
	for name, m := range a.all() {
		for dataplane := range m.records.all() {
			all = append(all, mesh.MakeID(name, dataplane))
		}
	}
	return all
}

// all returns the authorities of all meshes.
func (a *Authority) all() map[string]*meshAuthority {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.meshes)
}

// PathInUse returns the SPIFFE path that the certificate in use of a proxy names, "" if that is not known, and whether the proxy is
// known to have joined.
func (a *Authority) PathInUse(proxy mesh.ID) (path string, joined bool) {
	h, joined := a.history(proxy)
	return h.path(), joined
}

// Loaded returns what the authority of a mesh has loaded.
func (a *Authority) Loaded(meshName string) (ca.Progress, error) {
	m, err := a.mesh(meshName)
	if err != nil {
		return ca.Progress{}, err
	}
	return m.Current().Progress(), nil
}

// CertificateInUse returns the certificate that a proxy uses, or before it has said so the last one that was issued to it, and whether there is
// one.
func (a *Authority) CertificateInUse(proxy mesh.ID) (Peer, bool) {
	h, joined := a.history(proxy)
	c, known := h.latest()
	meshName, name := mesh.SplitID(proxy)
	return Peer{
		Subject: Subject{Mesh: meshName, Dataplane: name, Path: c.Path, Instance: h.Instance}, Serial: c.Serial, NotAfter: c.NotAfter, CA: c.CA,
	}, joined && known
}

// Replaced tells that s is the instance of its proxy now. What is known of an earlier one is forgotten; it returns whether there was
// something.
func (a *Authority) Replaced(s Subject) bool {
	m, err := a.mesh(s.Mesh)
	return err == nil && a.o.Records == nil && m.records.forgetOthers(s)
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

// dataplaneLag is how much later than of its certificate this process may hear of a proxy's Dataplane.
const dataplaneLag = time.Minute

// Sweep forgets proxies, except those that keep wants, those that have been known for less than dataplaneLag, and, if there are Options.Records, those with a valid certificate. It returns
// those that it has forgotten. It also logs CAs that expire soon. It should be called from time to time.
func (a *Authority) Sweep(keep func(proxy mesh.ID) bool) ([]mesh.ID, error) {
	var forgotten []mesh.ID
	var problems []error
	for name, m := range a.all() {
		a.warnExpiry(m)
		now := a.o.Now()
		for dataplane, h := range m.records.all() {
			id := mesh.MakeID(name, dataplane)
			if a.o.Records != nil && now.Before(h.expires()) || a.o.Records == nil && now.Sub(h.known) < dataplaneLag || keep(id) {
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

// NoProxies is an Options.Proxies that never knows them: no rotation goes on.
func NoProxies(string) (iter.Seq2[string, string], bool) { return nil, false }
