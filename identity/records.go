package identity

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxIssued is how many certificates of one proxy are remembered, so that an agent that renews in a loop cannot fill the
// disk.
const maxIssued = 8

const recordSuffix = ".json"

// record is what is known about the certificates of one proxy. It is kept in the storage, since a rotation must wait for
// every proxy with a valid certificate, even one that is not connected.
type record struct {
	dataplane string
	// io orders the writes; meshAuthority.mu guards the fields below.
	io sync.Mutex

	Issued []issuedCertificate `json:"issued"`
	// Bundle and Serial are what the agent last reported.
	Bundle string `json:"bundle,omitempty"`
	Serial string `json:"serial,omitempty"`
}

type issuedCertificate struct {
	Serial   string    `json:"serial"`
	NotAfter time.Time `json:"notAfter"`
	CA       string    `json:"ca"`
	// Workload is "" in records of earlier releases, which did not have it.
	Workload string `json:"workload,omitempty"`
}

// add remembers a certificate and forgets those that have expired.
func (r *record) add(c issuedCertificate, now time.Time) {
	r.Issued = slices.DeleteFunc(r.Issued, func(old issuedCertificate) bool { return !now.Before(old.NotAfter) })
	if len(r.Issued) >= maxIssued {
		// Keep the one that the agent reported as in use.
		i := slices.IndexFunc(r.Issued, func(old issuedCertificate) bool { return old.Serial != r.Serial })
		r.Issued = slices.Delete(r.Issued, i, i+1)
	}
	r.Issued = append(r.Issued, c)
}

// expires returns when the last of the certificates expires.
func (r *record) expires() time.Time {
	var last time.Time
	for _, c := range r.Issued {
		if c.NotAfter.After(last) {
			last = c.NotAfter
		}
	}
	return last
}

// inUse returns the certificate that the agent reported, and false if it was not issued to the proxy.
func (r *record) inUse() (issuedCertificate, bool) {
	i := slices.IndexFunc(r.Issued, func(c issuedCertificate) bool { return c.Serial == r.Serial })
	if i < 0 {
		return issuedCertificate{}, false
	}
	return r.Issued[i], true
}

// workload returns the workload of the certificate in use; before the agent has reported one, of the last issued.
func (r *record) workload() string {
	if c, ok := r.inUse(); ok {
		return c.Workload
	}
	if len(r.Issued) > 0 {
		return r.Issued[len(r.Issued)-1].Workload
	}
	return ""
}

// record returns the record of a dataplane, a new one if there is none. mu is held.
func (m *meshAuthority) record(dataplane string) *record {
	r := m.proxies[dataplane]
	if r == nil {
		r = &record{dataplane: dataplane}
		m.proxies[dataplane] = r
	}
	return r
}

func recordDirectory(meshName string) string { return path.Join(meshDirectory(meshName), "proxies") }

func (m *meshAuthority) recordPath(dataplane string) string {
	return path.Join(recordDirectory(m.mesh), dataplane+recordSuffix)
}

// writeRecord writes the current record. m.io is read-locked, m.mu is not held.
func (a *Authority) writeRecord(m *meshAuthority, r *record) error {
	r.io.Lock()
	defer r.io.Unlock()
	m.mu.Lock()
	data, err := json.Marshal(r)
	m.mu.Unlock()
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	if err := a.o.Records.Write(m.recordPath(r.dataplane), data); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

func (a *Authority) loadRecords(m *meshAuthority) error {
	names, err := a.o.Records.List(recordDirectory(m.mesh))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list %s: %w", recordDirectory(m.mesh), err)
	}
	for _, name := range names {
		dataplane, ok := strings.CutSuffix(path.Base(name), recordSuffix)
		if !ok {
			continue
		}
		data, err := a.o.Records.Read(m.recordPath(dataplane))
		if err != nil {
			return fmt.Errorf("read %s: %w", m.recordPath(dataplane), err)
		}
		r := &record{dataplane: dataplane}
		if err := json.Unmarshal(data, r); err != nil {
			return fmt.Errorf("read %s: %w", m.recordPath(dataplane), err)
		}
		m.proxies[dataplane] = r
	}
	return nil
}

// forgetExpired removes the records of proxies whose last certificate has expired, except those that keep wants, and
// returns their dataplanes.
func (a *Authority) forgetExpired(m *meshAuthority, keep func(dataplane string) bool) ([]string, error) {
	m.io.Lock()
	defer m.io.Unlock()
	m.mu.Lock()
	var gone []string
	for name, r := range m.proxies {
		if !a.o.Now().Before(r.expires()) && !keep(name) {
			gone = append(gone, name)
			delete(m.proxies, name)
		}
	}
	m.mu.Unlock()
	for _, name := range gone {
		if err := a.o.Records.Remove(m.recordPath(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return gone, fmt.Errorf("remove %s: %w", m.recordPath(name), err)
		}
	}
	return gone, nil
}
