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
	// Waiting are the proxies that have a valid certificate, or may have one, and have not done the step, sorted.
	Waiting []Waiting
}

// Waiting is a proxy that a rotation waits for, whether or not it is connected.
type Waiting struct {
	Dataplane string
	// Expires is when the last of its certificates expires, at the latest. The rotation does not wait longer than that.
	Expires time.Time
}

// StartRotation makes a new CA with that validity (0: mesh.DefaultCAValidity), and starts to replace the old one. It does nothing
// if a rotation is in progress.
func (a *Authority) StartRotation(ctx context.Context, meshName string, validity time.Duration) error {
	m, err := a.mesh(meshName)
	if err != nil {
		return err
	}
	return m.Start(ctx, func() (*ca.CA, error) { return a.newCA(meshName, validity) })
}

// ForceRotation makes the current rotation not wait for silent proxies, in this step and the following ones.
func (a *Authority) ForceRotation(ctx context.Context, meshName string) error {
	m, err := a.mesh(meshName)
	if err != nil {
		return err
	}
	return m.Force(ctx)
}

// AdvanceRotation goes on to the step after the one of from if no proxy has to be waited for, and returns whether it did:
// not if that step is over. A forced rotation does not wait for the silent dataplanes. AdvanceRotation has to be called
// until it returns false, after each report, and from time to time, since certificates expire.
func (a *Authority) AdvanceRotation(
	ctx context.Context, meshName string, from ca.Progress, silent map[string]bool,
) (bool, error) {
	m, err := a.mesh(meshName)
	if err != nil {
		return false, err
	}
	return m.Advance(ctx, from, func(s *state) bool {
		waiting, known := a.waiting(m, s)
		return known && !slices.ContainsFunc(waiting, func(w Waiting) bool {
			return !s.Rotation.Forced || !silent[w.Dataplane]
		})
	}, nil)
}

// Rotation returns the progress of the rotation of a mesh's CA. The Step is ca.StepNone if none is in progress.
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

// done reports whether a proxy has what the current step needs, as its agent says.
func (s *state) done(h history) bool {
	leaf, _ := h.inUse()
	return h.Bundle == s.bundle.ID && (s.Step() != ca.StepRenewLeaves || leaf.CA == s.Signing.ID)
}

// replaces reports whether a leaf of that CA, of a proxy whose bundle has that epoch, is to be renewed. One of a later CA is not: then this
// process has not heard of a step of the rotation yet.
func (s *state) replaces(id string, epoch int64) bool {
	index := func(id string) int { return slices.IndexFunc(s.CAs, func(c *ca.CA) bool { return c.ID == id }) }
	if of := index(id); of >= 0 {
		return of < index(s.Signing.ID)
	}
	return epoch <= s.bundle.Epoch
}

// waiting returns the proxies that have not done the current step, and false while it is not known which proxies there are.
func (a *Authority) waiting(m *meshAuthority, s *state) ([]Waiting, bool) {
	holders, known := a.holders(m, s.Since)
	var all []Waiting
	for _, h := range holders {
		if a.o.Now().Before(h.Expires) && !s.done(h.history) {
			all = append(all, Waiting{Dataplane: h.Dataplane, Expires: h.Expires})
		}
	}
	return all, known
}

// Holder is a proxy that has, or may have had, a certificate.
type Holder struct {
	Dataplane string
	// Expires is when the last of its certificates expires, at the latest. It may be over.
	Expires time.Time
	// ServingCA is InUse.ServingCA as its agent last reported it.
	ServingCA string

	history history
}

// Holders returns the proxies of a mesh that have, or may have had, a certificate, and false while it is not known which proxies there are. What
// this process does not know may have been issued before that time.
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
	proxies, known := a.o.Proxies(m.mesh)
	if !known {
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

// holdersOf returns all of the proxies, and others that have a record: another process may know of a proxy earlier. What is in memory may not be all that
// the proxies have: an earlier process, or another one that had not heard of the current step of a rotation, may have issued certificates to them. So each
// of them may have one that expires at unknown.
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

// maxReported is the longest bundle ID or serial number in a report, in bytes.
const maxReported = 64

// InUse is what a proxy uses, as its agent says.
type InUse struct {
	// Bundle is the ID of the bundle, Epoch its epoch: 0 if the agent does not say it.
	Bundle string
	Epoch  int64
	// Serial number of the leaf in hexadecimal, CA the ID of the one that has signed it, NotAfter when it expires. CA is "" if the agent does not
	// say it.
	Serial, CA string
	NotAfter   time.Time
	// ServingCA is the ID of the CAs by which the control plane is verified, see package serving, "" if the agent does not say it.
	ServingCA string
}

// Report records what a proxy uses. If there are Records, they have it when it returns.
func (a *Authority) Report(p Peer, use InUse) error {
	if len(use.Bundle) > maxReported || len(use.Serial) > maxReported || len(use.CA) > maxReported || len(use.ServingCA) > maxReported {
		return errors.New("read report: the bundle's id, the serial number or a CA's id is too long")
	}
	use.Serial = strings.TrimLeft(strings.ToLower(use.Serial), "0")
	m, err := a.mesh(p.Mesh)
	if err != nil {
		return err
	}
	if a.o.Records == nil {
		// An earlier process may have issued it, or another one: the certificate of the connection, and that in use.
		m.records.know(p, a.o.Now())
		if use.CA != "" {
			p.Serial, p.CA, p.NotAfter, p.NotBefore = use.Serial, use.CA, use.NotAfter, time.Time{}
			if latest := a.o.Now().Add(m.Current().longest); p.NotAfter.After(latest) {
				p.NotAfter = latest // a rotation waits for it
			}
			m.records.know(p, a.o.Now())
		}
	}
	if !m.records.report(p.Dataplane, use) {
		return nil
	}
	return m.records.write(p.Dataplane)
}

// Hear records the certificate of a proxy that another process of the control plane knows, and what the proxy uses as its agent has said there,
// nil if it has not.
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

// Due is what a proxy still has to put in place.
type Due struct {
	// Bundle of the mesh; NewBundle says that the proxy does not use it yet.
	Bundle    Bundle
	NewBundle bool
	// CA that signs; NewLeaf says that the proxy's leaf is from another one.
	CA      string
	NewLeaf bool
	// LeafExpires is when the leaf expires that the proxy has reported, zero if it is not known.
	LeafExpires time.Time
}

// Due returns what a proxy still has to put in place, according to its last report.
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
