package identity

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// maxIssued limits the recorded certificates of a proxy, so that an agent that renews in a loop cannot fill the disk.
const maxIssued = 8

const recordSuffix = ".json"

// unknownSerial stands for all certificates of a proxy whose record is invalid.
const unknownSerial = "unknown"

// history has the certificates of one instance of a proxy. It is immutable.
type history struct {
	// Instance is Subject.Instance.
	Instance string              `json:"instance,omitempty"`
	Issued   []issuedCertificate `json:"issued"`
	// Bundle and Serial are from the agent's last report.
	Bundle string `json:"bundle,omitempty"`
	Epoch  int64  `json:"epoch,omitempty"`
	Serial string `json:"serial,omitempty"`
	// ServingCA is the ID of the control plane's CAs in the agent's last report.
	ServingCA string `json:"servingCA,omitempty"`

	// known is when this process first recorded the instance, zero if an earlier process did.
	known time.Time
}

type issuedCertificate struct {
	Serial   string    `json:"serial"`
	NotAfter time.Time `json:"notAfter"`
	// NotBefore is zero in records of earlier releases, and for certificates that another process issued.
	NotBefore time.Time `json:"notBefore,omitzero"`
	CA        string    `json:"ca"`
	// Path is Subject.Path, "" in records of early releases.
	Path string `json:"path,omitempty"`
	// Workload replaces Path in records of early releases.
	Workload string `json:"workload,omitempty"`
}

// upgraded converts a history written by an earlier release.
func (h history) upgraded() history {
	h.Issued = slices.Clone(h.Issued)
	for i := range h.Issued {
		if c := &h.Issued[i]; c.Path == "" && c.Workload != "" {
			c.Path, c.Workload = mesh.WorkloadPath(c.Workload), ""
		}
	}
	return h
}

// with returns the history with another certificate and without expired ones.
func (h history) with(c issuedCertificate, now time.Time) history {
	valid := slices.DeleteFunc(slices.Clone(h.Issued), func(old issuedCertificate) bool {
		return !now.Before(old.NotAfter)
	})
	if len(valid) >= maxIssued {
		// Keep the certificate that the agent has reported to be in use.
		i := slices.IndexFunc(valid, func(old issuedCertificate) bool { return old.Serial != h.Serial })
		valid = slices.Delete(valid, i, i+1)
	}
	h.Issued = append(valid, c)
	if h.known.IsZero() {
		h.known = now
	}
	return h
}

// expires returns the latest expiry of the certificates.
func (h history) expires() time.Time {
	var last time.Time
	for _, c := range h.Issued {
		if c.NotAfter.After(last) {
			last = c.NotAfter
		}
	}
	return last
}

// inUse returns the certificate in the agent's report, false if it was not issued to the proxy.
func (h history) inUse() (issuedCertificate, bool) {
	i := slices.IndexFunc(h.Issued, func(c issuedCertificate) bool { return c.Serial == h.Serial })
	if i < 0 {
		return issuedCertificate{}, false
	}
	return h.Issued[i], true
}

// latest returns the certificate in use or, before a report, the last issued one. It returns false without any.
func (h history) latest() (issuedCertificate, bool) {
	c, ok := h.inUse()
	if !ok && len(h.Issued) > 0 {
		c, ok = h.Issued[len(h.Issued)-1], true
	}
	return c, ok
}

// path returns the SPIFFE path of the latest certificate.
func (h history) path() string {
	c, _ := h.latest()
	return c.Path
}

// records has the history of each proxy of a mesh. It is also stored, since a rotation must wait for every proxy with a
// valid certificate, even a disconnected one. If another source lists the proxies, it is only in memory.
type records struct {
	storage   Records // nil means only in memory
	directory string
	// Each mutex in files guards the files of some dataplanes, by hash, during a write or a removal, so that the last
	// write to a file has the newest history.
	files [64]sync.Mutex
	seed  maphash.Seed

	mu      sync.Mutex // guards proxies; never held while a file is read or written
	proxies map[string]history
}

// loadRecords reads the records of a mesh. A proxy with an invalid record counts as joined, with a certificate that is
// valid until latest.
func loadRecords(storage Records, directory string, latest time.Time, log *slog.Logger) (*records, error) {
	rs := &records{storage: storage, directory: directory, seed: maphash.MakeSeed(), proxies: map[string]history{}}
	if storage == nil {
		return rs, nil
	}
	names, err := storage.List(directory)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list %s: %w", directory, err)
	}
	for _, name := range names {
		dataplane, ok := strings.CutSuffix(name, recordSuffix)
		if !ok {
			continue
		}
		var h history
		data, err := storage.Read(rs.path(dataplane))
		if err == nil && json.Unmarshal(data, &h) != nil {
			err = mesh.ExplainJSON("", data, &h)
		}
		if err != nil {
			log.Error("invalid record of a proxy: a rotation waits until it renews its certificate",
				"file", rs.path(dataplane), "proxy", dataplane, "err", err)
			h = history{Issued: []issuedCertificate{{Serial: unknownSerial, NotAfter: latest}}}
		}
		rs.proxies[dataplane] = h.upgraded()
	}
	return rs, nil
}

func (rs *records) path(dataplane string) string {
	return path.Join(rs.directory, dataplane+recordSuffix)
}

func (rs *records) file(dataplane string) *sync.Mutex {
	return &rs.files[maphash.String(rs.seed, dataplane)%uint64(len(rs.files))]
}

// add adds a certificate in memory; the caller must write it. It drops the history of another instance.
func (rs *records) add(s Subject, c issuedCertificate, now time.Time) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.proxies[s.Dataplane] = rs.ofInstance(s).with(c, now)
}

// know adds the certificate of a connection, unless it is recorded.
func (rs *records) know(p Peer, now time.Time) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	h := rs.ofInstance(p.Subject)
	if !slices.ContainsFunc(h.Issued, func(c issuedCertificate) bool { return c.Serial == p.Serial }) {
		h = h.with(issuedCertificate{Serial: p.Serial, NotAfter: p.NotAfter, NotBefore: p.NotBefore, CA: p.CA, Path: p.Path},
			now)
	}
	rs.proxies[p.Dataplane] = h
}

// ofInstance returns the history of an instance of a proxy. The caller holds mu.
func (rs *records) ofInstance(s Subject) history {
	if h := rs.proxies[s.Dataplane]; h.Instance == s.Instance {
		return h
	}
	return history{Instance: s.Instance}
}

// forgetOthers drops the history of another instance than s, and reports whether there was one.
func (rs *records) forgetOthers(s Subject) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	h, ok := rs.proxies[s.Dataplane]
	if !ok || h.Instance == s.Instance {
		return false
	}
	delete(rs.proxies, s.Dataplane)
	return true
}

// report records a proxy's report in memory, and returns whether to write it.
func (rs *records) report(dataplane string, use InUse) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	h, ok := rs.proxies[dataplane]
	if !ok || h.Bundle == use.Bundle && h.Epoch == use.Epoch && h.Serial == use.Serial && h.ServingCA == use.ServingCA {
		return false
	}
	h.Bundle, h.Epoch, h.Serial, h.ServingCA = use.Bundle, use.Epoch, use.Serial, use.ServingCA
	rs.proxies[dataplane] = h
	return true
}

// write writes the current history of a proxy, unless it was dropped meanwhile.
func (rs *records) write(dataplane string) error {
	if rs.storage == nil {
		return nil
	}
	file := rs.file(dataplane)
	file.Lock()
	defer file.Unlock()
	h, ok := rs.of(dataplane)
	if !ok {
		return nil
	}
	data, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	if err := rs.storage.Write(rs.path(dataplane), data); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// of returns the history of a proxy, false without one.
func (rs *records) of(dataplane string) (history, bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	h, ok := rs.proxies[dataplane]
	return h, ok
}

// all returns the history of each proxy.
func (rs *records) all() map[string]history {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return maps.Clone(rs.proxies)
}

// forget removes the record of a proxy and reports whether it did. It keeps a stored record until its last certificate
// has expired. A caller that adds a certificate at the same time waits for the file, and writes it again.
func (rs *records) forget(dataplane string, now time.Time) (bool, error) {
	file := rs.file(dataplane)
	file.Lock()
	defer file.Unlock()
	if !rs.drop(dataplane, now) {
		return false, nil
	}
	if rs.storage == nil {
		return true, nil
	}
	if err := rs.storage.Remove(rs.path(dataplane)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return true, fmt.Errorf("remove %s: %w", rs.path(dataplane), err)
	}
	return true, nil
}

func (rs *records) drop(dataplane string, now time.Time) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	h, ok := rs.proxies[dataplane]
	if !ok || rs.storage != nil && now.Before(h.expires()) {
		return false
	}
	delete(rs.proxies, dataplane)
	return true
}
