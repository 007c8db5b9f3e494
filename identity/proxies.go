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

// Joined returns the proxies of all meshes with an issued certificate, until Sweep drops them. Without Options.Records
// it returns only proxies that have joined or reported since this process started.
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

// PathInUse returns the SPIFFE path in the certificate that a proxy uses, "" if it is unknown, and whether the proxy
// has joined.
func (a *Authority) PathInUse(proxy mesh.ID) (path string, joined bool) {
	h, joined := a.history(proxy)
	return h.path(), joined
}

// Loaded returns the state of a mesh's authority in memory.
func (a *Authority) Loaded(meshName string) (ca.Progress, error) {
	m, err := a.mesh(meshName)
	if err != nil {
		return ca.Progress{}, err
	}
	return m.Current().Progress(), nil
}

// CertificateInUse returns the certificate that a proxy uses or, before its first report, the last one issued to it. It
// returns false if the proxy has no certificate.
func (a *Authority) CertificateInUse(proxy mesh.ID) (Peer, bool) {
	h, joined := a.history(proxy)
	c, ok := h.latest()
	meshName, name := mesh.SplitID(proxy)
	return Peer{
		Subject: Subject{Mesh: meshName, Dataplane: name, Path: c.Path, Instance: h.Instance}, Serial: c.Serial,
		NotAfter: c.NotAfter, CA: c.CA,
	}, joined && ok
}

// Replaced makes s the current instance of its proxy. It drops the records of other instances, and returns whether
// there were any.
func (a *Authority) Replaced(s Subject) bool {
	m, err := a.mesh(s.Mesh)
	return err == nil && a.o.Records == nil && m.records.forgetOthers(s)
}

// HasCertificate reports whether a certificate issued to the proxy is still valid.
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

// dataplaneLag is how long after a proxy got a certificate this process may still have to wait for its Dataplane.
const dataplaneLag = time.Minute

// Sweep drops proxies and returns them. It keeps proxies for which keep returns true, new ones for dataplaneLag and,
// with Options.Records, proxies with a valid certificate. It also logs CAs that expire soon. Call it periodically.
func (a *Authority) Sweep(keep func(proxy mesh.ID) bool) ([]mesh.ID, error) {
	var forgotten []mesh.ID
	var problems []error
	for name, m := range a.all() {
		a.warnExpiry(m)
		now := a.o.Now()
		for dataplane, h := range m.records.all() {
			id := mesh.MakeID(name, dataplane)
			if a.o.Records != nil && now.Before(h.expires()) || a.o.Records == nil && now.Sub(h.known) < dataplaneLag ||
				keep(id) {
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

// NoProxies is an Options.Proxies that returns that the proxies are unknown, so that no rotation proceeds.
func NoProxies(string) (iter.Seq2[string, string], bool) { return nil, false }
