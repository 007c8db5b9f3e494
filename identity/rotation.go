package identity

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/identity/ca"
)

// Step of a rotation. It is complete when every proxy has done it.
type Step string

// The steps, in order. During each of them, all proxies that have done the step before trust each other.
const (
	// StepNone means that no rotation is in progress.
	StepNone Step = ""
	// StepTrustBoth gives every proxy the bundle of the old and the new CA. The old one signs.
	StepTrustBoth Step = "trust both"
	// StepRenewLeaves gives every proxy a certificate of the new CA. The new one signs.
	StepRenewLeaves Step = "renew leaves"
	// StepTrustNew gives every proxy the bundle of the new CA alone.
	StepTrustNew Step = "trust new"
)

var errNoRotation = errors.New("no rotation in progress")

// rotation is the state of a rotation in the storage.
type rotation struct {
	Step    Step      `json:"step"`
	Started time.Time `json:"started"`
	Forced  bool      `json:"forced,omitempty"`
}

// Rotation is the progress of the rotation of a mesh's CA.
type Rotation struct {
	Step Step
	// Waiting are the proxies that have a valid certificate and have not done the step, sorted.
	Waiting []Waiting
}

// Waiting is a proxy that a rotation waits for, whether or not it is connected.
type Waiting struct {
	Dataplane string
	// Expires is when the last of its certificates expires. The rotation does not wait longer than that.
	Expires time.Time
}

// StartRotation makes a new CA, valid for life (0: mesh.DefaultCALife), and starts to replace the old one. It does nothing
// if a rotation is in progress.
func (a *Authority) StartRotation(meshName string, life time.Duration) error {
	m, err := a.open(meshName, nil)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rotation != nil {
		return nil
	}
	next, err := a.newMeshCA(meshName, life)
	if err != nil {
		return fmt.Errorf("start rotation of mesh %q: %w", meshName, err)
	}
	return a.commit(m, []*ca.CA{m.signing, next}, m.signing, &rotation{Step: StepTrustBoth, Started: a.o.Now()})
}

// ForceRotation makes the current rotation not wait for silent proxies, in this step and the following ones.
func (a *Authority) ForceRotation(meshName string) error {
	m, err := a.open(meshName, nil)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rotation == nil {
		return fmt.Errorf("mesh %q: %w", meshName, errNoRotation)
	}
	if m.rotation.Forced {
		return nil
	}
	forced := *m.rotation
	forced.Forced = true
	return a.commit(m, m.cas, m.signing, &forced)
}

// AdvanceRotation goes on to the next step, or several, while no proxy has to be waited for, and returns whether it did.
// silent reports whether a forced rotation skips a proxy; it must not call the Authority. AdvanceRotation has to be called
// after each report, and from time to time, since certificates expire.
func (a *Authority) AdvanceRotation(meshName string, silent func(dataplane string) bool) (bool, error) {
	m, err := a.open(meshName, nil)
	if err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	advanced := false
	for m.rotation != nil && !slices.ContainsFunc(m.waiting(a.o.Now()), func(w Waiting) bool {
		return !m.rotation.Forced || !silent(w.Dataplane)
	}) {
		if err := a.nextStep(m); err != nil {
			return advanced, err
		}
		advanced = true
	}
	return advanced, nil
}

// nextStep commits the state of the next step. mu is held.
func (a *Authority) nextStep(m *meshAuthority) error {
	newest := m.cas[len(m.cas)-1]
	next := *m.rotation
	switch m.rotation.Step {
	case StepTrustBoth:
		next.Step = StepRenewLeaves
		// The old CA no longer signs: remove its key.
		trusted := make([]*ca.CA, len(m.cas))
		for i, c := range m.cas {
			trusted[i] = c.WithoutKey()
		}
		trusted[len(trusted)-1] = newest
		return a.commit(m, trusted, newest, &next)
	case StepRenewLeaves:
		next.Step = StepTrustNew
		return a.commit(m, []*ca.CA{newest}, newest, &next)
	default:
		return a.commit(m, m.cas, m.signing, nil)
	}
}

// commit writes a new state to the storage, and then puts it into use. mu is held.
func (a *Authority) commit(m *meshAuthority, cas []*ca.CA, signing *ca.CA, r *rotation) error {
	if err := a.writeAuthority(m.mesh, cas, signing, r); err != nil {
		return fmt.Errorf("rotate CA of mesh %q: %w", m.mesh, err)
	}
	m.cas, m.signing, m.rotation = cas, signing, r
	if err := m.publish(a.o.TrustDomain); err != nil {
		return fmt.Errorf("rotate CA of mesh %q: %w", m.mesh, err)
	}
	now := StepNone
	if r != nil {
		now = r.Step
	}
	a.o.Logger.Info("CA rotation", "mesh", m.mesh, "step", now, "bundle", m.trust.Load().bundle.ID, "ca", signing.ID)
	return nil
}

// Rotation returns the progress of the rotation of a mesh's CA. The Step is StepNone if none is in progress.
func (a *Authority) Rotation(meshName string) (Rotation, error) {
	m, err := a.open(meshName, nil)
	if err != nil {
		return Rotation{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rotation == nil {
		return Rotation{}, nil
	}
	return Rotation{Step: m.rotation.Step, Waiting: m.waiting(a.o.Now())}, nil
}

// waiting returns the proxies that the current rotation waits for. mu is held.
func (m *meshAuthority) waiting(now time.Time) []Waiting {
	var all []Waiting
	for name, r := range m.proxies {
		if expires := r.expires(); now.Before(expires) && !m.hasDoneStep(r) {
			all = append(all, Waiting{Dataplane: name, Expires: expires})
		}
	}
	slices.SortFunc(all, func(x, y Waiting) int { return cmp.Compare(x.Dataplane, y.Dataplane) })
	return all
}

// hasDoneStep reports whether a proxy has the bundle of the current step and, while leaves are renewed, a new leaf.
func (m *meshAuthority) hasDoneStep(r *record) bool {
	if r.Bundle != m.trust.Load().bundle.ID {
		return false
	}
	return m.rotation.Step != StepRenewLeaves || m.leafIsCurrent(r)
}

func (m *meshAuthority) leafIsCurrent(r *record) bool {
	leaf, ok := r.inUse()
	return ok && leaf.CA == m.signing.ID
}

// maxReported is the longest bundle ID or serial number in a report, in bytes.
const maxReported = 64

// Report records the bundle and the leaf that a proxy uses, as its agent says. They are in the storage when it returns.
func (a *Authority) Report(p Peer, bundleID, serial string) error {
	if len(bundleID) > maxReported || len(serial) > maxReported {
		return errors.New("read report: the bundle's id or the serial number is too long")
	}
	serial = strings.TrimLeft(strings.ToLower(serial), "0")
	m, err := a.open(p.Mesh, nil)
	if err != nil {
		return err
	}
	m.io.RLock()
	defer m.io.RUnlock()
	m.mu.Lock()
	r := m.proxies[p.Dataplane]
	same := r != nil && r.Bundle == bundleID && r.Serial == serial
	if r != nil {
		r.Bundle, r.Serial = bundleID, serial
	}
	m.mu.Unlock()
	if r == nil || same {
		return nil
	}
	return a.writeRecord(m, r)
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
	m, err := a.open(p.Mesh, nil)
	if err != nil {
		return Due{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d := Due{Bundle: m.trust.Load().bundle, CA: m.signing.ID}
	r := m.proxies[p.Dataplane]
	d.NewBundle = r == nil || r.Bundle != d.Bundle.ID
	d.NewLeaf = r == nil || !m.leafIsCurrent(r)
	if r != nil {
		leaf, _ := r.inUse()
		d.LeafExpires = leaf.NotAfter
	}
	return d, nil
}
