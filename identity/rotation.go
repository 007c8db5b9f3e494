package identity

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/identity/ca"
)

// Rotation is the progress of the rotation of a mesh's CA.
type Rotation struct {
	ca.Progress
	// Waiting are the sorted proxies that may have a valid certificate and have not completed the step.
	Waiting []Waiting
}

// Waiting is a proxy that a rotation waits for, whether or not it is connected.
type Waiting struct {
	Dataplane string
	// Expires is the latest possible expiry of its certificates. The rotation waits no longer.
	Expires time.Time
}

// StartRotation creates a CA with this validity (0: mesh.DefaultCAValidity), and starts to replace the old one. It does
// nothing during a rotation.
func (a *Authority) StartRotation(ctx context.Context, meshName string, validity time.Duration) error {
	m, err := a.mesh(meshName)
	if err != nil {
		return err
	}
	return m.Start(ctx, func() (*ca.CA, error) { return a.newCA(meshName, validity) })
}

// ForceRotation makes the current rotation not wait for disconnected proxies, in this step and the following ones.
func (a *Authority) ForceRotation(ctx context.Context, meshName string) error {
	m, err := a.mesh(meshName)
	if err != nil {
		return err
	}
	return m.Force(ctx)
}

// AdvanceRotation begins the step after from unless it must wait for a proxy, and reports whether it did. It does
// nothing if from is not the current step. A forced rotation does not wait for the silent dataplanes. Call it until it
// returns false, after each report and periodically, since certificates expire.
func (a *Authority) AdvanceRotation(
	ctx context.Context, meshName string, from ca.Progress, silent map[string]bool,
) (bool, error) {
	m, err := a.mesh(meshName)
	if err != nil {
		return false, err
	}
	return m.Advance(ctx, from, func(s *state) bool {
		waiting, ok := a.waiting(m, s)
		return ok && !slices.ContainsFunc(waiting, func(w Waiting) bool {
			return !s.Rotation.Forced || !silent[w.Dataplane]
		})
	}, nil)
}

// Rotation returns the progress of the rotation of a mesh's CA. Step is ca.StepNone if no rotation is in progress.
func (a *Authority) Rotation(meshName string) (Rotation, error) {
	m, err := a.mesh(meshName)
	if err != nil {
		return Rotation{}, err
	}
	s := m.Current()
	if s.Rotation == nil {
		return Rotation{Progress: s.Progress()}, nil
	}
	waiting, _ := a.waiting(m, s)
	slices.SortFunc(waiting, func(x, y Waiting) int { return cmp.Compare(x.Dataplane, y.Dataplane) })
	return Rotation{s.Progress(), waiting}, nil
}

// done reports whether a proxy has completed the current step, by its agent's report.
func (s *state) done(h history) bool {
	leaf, _ := h.inUse()
	return h.Bundle == s.bundle.ID && (s.Step() != ca.StepRenewLeaves || leaf.CA == s.Signing.ID)
}

// replaces reports whether to renew a proxy's leaf, given the ID of its CA and the epoch of the proxy's bundle. It
// keeps a leaf of a later CA, since then this process has missed a step of the rotation.
func (s *state) replaces(id string, epoch int64) bool {
	index := func(id string) int { return slices.IndexFunc(s.CAs, func(c *ca.CA) bool { return c.ID == id }) }
	if of := index(id); of >= 0 {
		return of < index(s.Signing.ID)
	}
	return epoch <= s.bundle.Epoch
}

// waiting returns the proxies that have not completed the current step, false while the proxies are unknown.
func (a *Authority) waiting(m *meshAuthority, s *state) ([]Waiting, bool) {
	holders, ok := a.holders(m, s.Since)
	var all []Waiting
	for _, h := range holders {
		if a.o.Now().Before(h.Expires) && !s.done(h.history) {
			all = append(all, Waiting{Dataplane: h.Dataplane, Expires: h.Expires})
		}
	}
	return all, ok
}

// Holder is a proxy that has or had a certificate.
type Holder struct {
	Dataplane string
	// Expires is the latest possible expiry of its certificates. It may be in the past.
	Expires time.Time
	// ServingCA is InUse.ServingCA in its agent's last report.
	ServingCA string

	history history
}

// Holders returns the proxies of a mesh that have or had a certificate, false while the proxies are unknown. It assumes
// that other processes may have issued certificates until before.
func (a *Authority) Holders(meshName string, before time.Time) ([]Holder, bool) {
	m, err := a.mesh(meshName)
	if err != nil {
		return nil, true
	}
	return a.holders(m, before)
}

func (a *Authority) holders(m *meshAuthority, before time.Time) ([]Holder, bool) {
	if a.o.Proxies == nil {
		return m.records.holders(), true
	}
	proxies, ok := a.o.Proxies(m.mesh)
	if !ok {
		return nil, false
	}
	return m.records.holdersOf(proxies, before.Add(m.Current().longest)), true
}

// holders returns the proxies that have a record.
func (rs *records) holders() []Holder {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return holdersIn(rs.proxies)
}

// holdersOf returns the given proxies, and others with a record, since another process may have learned of a proxy
// earlier. An earlier process, or one that missed the current step of a rotation, may have issued certificates that are
// not in memory. So each proxy may have a certificate, which expires at unknown.
func (rs *records) holdersOf(proxies iter.Seq2[string, string], unknown time.Time) []Holder {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	var all []Holder
	others := maps.Clone(rs.proxies)
	for name, instance := range proxies {
		delete(others, name)
		h := rs.ofInstance(Subject{Dataplane: name, Instance: instance})
		expires := h.expires()
		if expires.Before(unknown) {
			expires = unknown
		}
		all = append(all, Holder{Dataplane: name, Expires: expires, ServingCA: h.ServingCA, history: h})
	}
	return append(all, holdersIn(others)...)
}

func holdersIn(records map[string]history) []Holder {
	var all []Holder
	for name, h := range records {
		all = append(all, Holder{Dataplane: name, Expires: h.expires(), ServingCA: h.ServingCA, history: h})
	}
	return all
}

// maxReported limits a bundle ID or serial number in a report, in bytes.
const maxReported = 64

// InUse has the certificates that a proxy uses, as its agent reports them.
type InUse struct {
	// Bundle is the ID of the bundle, Epoch its epoch: 0 if not reported.
	Bundle string
	Epoch  int64
	// Serial number of the leaf in hexadecimal, CA the ID of its issuer, NotAfter its expiry. CA is "" if not reported.
	Serial, CA string
	NotAfter   time.Time
	// ServingCA is the ID of the CAs used to verify the control plane, see package serving, "" if not reported.
	ServingCA string
}

// Report records the certificates that a proxy uses. With Options.Records, they are stored when Report returns.
func (a *Authority) Report(p Peer, use InUse) error {
	if len(use.Bundle) > maxReported || len(use.Serial) > maxReported || len(use.CA) > maxReported ||
		len(use.ServingCA) > maxReported {
		return errors.New("read report: the bundle's id, the serial number or a CA's id is too long")
	}
	use.Serial = strings.TrimLeft(strings.ToLower(use.Serial), "0")
	m, err := a.mesh(p.Mesh)
	if err != nil {
		return err
	}
	if a.o.Records == nil {
		// Another process may have issued the certificates of the connection and of the report.
		m.records.know(p, a.o.Now())
		if use.CA != "" {
			p.Serial, p.CA, p.NotAfter, p.NotBefore = use.Serial, use.CA, use.NotAfter, time.Time{}
			if latest := a.o.Now().Add(m.Current().longest); p.NotAfter.After(latest) {
				p.NotAfter = latest // a rotation waits for this report
			}
			m.records.know(p, a.o.Now())
		}
	}
	if !m.records.report(p.Dataplane, use) {
		return nil
	}
	return m.records.write(p.Dataplane)
}

// Hear records the certificate of a proxy that is connected to another process of the control plane, and what the proxy
// has reported to that process, nil without a report.
func (a *Authority) Hear(p Peer, use *InUse) error {
	if use != nil {
		return a.Report(p, *use)
	}
	m, err := a.mesh(p.Mesh)
	if err == nil {
		m.records.know(p, a.o.Now())
	}
	return err
}

// Due has the bundle and leaf that a proxy must install.
type Due struct {
	// Bundle of the mesh. NewBundle means that the proxy does not use it yet.
	Bundle    Bundle
	NewBundle bool
	// CA that signs. NewLeaf means that another CA has signed the proxy's leaf.
	CA      string
	NewLeaf bool
	// LeafExpires is the expiry of the reported leaf, zero if unknown.
	LeafExpires time.Time
}

// Due returns the bundle and leaf that a proxy must install according to its last report.
func (a *Authority) Due(p Peer) (Due, error) {
	m, err := a.mesh(p.Mesh)
	if err != nil {
		return Due{}, err
	}
	s := m.Current()
	h, _ := m.records.of(p.Dataplane)
	leaf, _ := h.inUse()
	return Due{
		Bundle: s.bundle, NewBundle: h.Bundle != s.bundle.ID && h.Epoch <= s.bundle.Epoch,
		CA: s.Signing.ID, NewLeaf: s.replaces(leaf.CA, h.Epoch), LeafExpires: leaf.NotAfter,
	}, nil
}
