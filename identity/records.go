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

// maxIssued is how many certificates of one proxy are remembered, so that an agent that renews in a loop cannot fill the
// disk.
const maxIssued = 8

const recordSuffix = ".json"

// unknownSerial stands for all certificates of a proxy whose record is bad.
const unknownSerial = "unknown"

// history is what is known about the certificates of one instance of a proxy. It is immutable.
type history struct {
	// Instance is Subject.Instance.
	Instance string              `json:"instance,omitempty"`
	Issued   []issuedCertificate `json:"issued"`
	// Bundle and Serial are what the agent last reported.
	Bundle string `json:"bundle,omitempty"`
	Epoch  int64  `json:"epoch,omitempty"`
	Serial string `json:"serial,omitempty"`
	// ServingCA is the ID of the control plane's CAs that the agent last reported.
	ServingCA string `json:"servingCA,omitempty"`

	// known is since when this process knows of the instance, zero if an earlier one did.
	known time.Time
}

type issuedCertificate struct {
	Serial   string    `json:"serial"`
	NotAfter time.Time `json:"notAfter"`
	// NotBefore is zero in records of earlier releases, and where only another process knows it.
	NotBefore time.Time `json:"notBefore,omitzero"`
	CA        string    `json:"ca"`
	// Path is Subject.Path, "" in records of early releases, which did not have it.
	Path string `json:"path,omitempty"`
	// Workload was there instead of Path in earlier releases.
	Workload string `json:"workload,omitempty"`
}

// upgraded returns a history that an earlier release may have written as this one would have.
func (h history) upgraded() history {
	h.Issued = slices.Clone(h.Issued)
	for i := range h.Issued {
		if c := &h.Issued[i]; c.Path == "" && c.Workload != "" {
			c.Path, c.Workload = mesh.WorkloadPath(c.Workload), ""
		}
	}
	return h
}

// with returns the history with one more certificate and without those that have expired.
func (h history) with(c issuedCertificate, now time.Time) history {
	valid := slices.DeleteFunc(slices.Clone(h.Issued), func(old issuedCertificate) bool { return !now.Before(old.NotAfter) })
	if len(valid) >= maxIssued {
		// Keep the one that the agent reported as in use.
		i := slices.IndexFunc(valid, func(old issuedCertificate) bool { return old.Serial != h.Serial })
		valid = slices.Delete(valid, i, i+1)
	}
	h.Issued = append(valid, c)
	if h.known.IsZero() {
		h.known = now
	}
	return h
}

// expires returns when the last of the certificates expires.
func (h history) expires() time.Time {
	var last time.Time
	for _, c := range h.Issued {
		if c.NotAfter.After(last) {
			last = c.NotAfter
		}
	}
	return last
}

// inUse returns the certificate that the agent reported, and false if it was not issued to the proxy.
func (h history) inUse() (issuedCertificate, bool) {
	i := slices.IndexFunc(h.Issued, func(c issuedCertificate) bool { return c.Serial == h.Serial })
	if i < 0 {
		return issuedCertificate{}, false
	}
	return h.Issued[i], true
}

// latest returns the certificate in use; before the agent has reported one, the last issued, and false if there is none.
func (h history) latest() (issuedCertificate, bool) {
	c, known := h.inUse()
	if !known && len(h.Issued) > 0 {
		c, known = h.Issued[len(h.Issued)-1], true
	}
	return c, known
}

// path returns the SPIFFE path of the latest certificate.
func (h history) path() string {
	c, _ := h.latest()
	return c.Path
}

// records has the history of each proxy of a mesh. It is in the storage, too, since a rotation must wait for every proxy with a
// valid certificate, even one that is not connected. Where something else says which proxies there are, it is only in memory.
type records struct {
	storage   Records // nil: only in memory
	directory string
	// Each of files is for some dataplanes, by hash. It is held while the file of one is written or removed, so that the last
	// write has the last history.
	files [64]sync.Mutex
	seed  maphash.Seed

	mu      sync.Mutex // guards proxies; never held while a file is read or written
	proxies map[string]history
}

// loadRecords reads the records of a mesh. A proxy whose record is bad has joined, and may have a certificate that is valid until latest.
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
			log.Error("bad record of a proxy: a rotation waits until it renews its certificate", "file", rs.path(dataplane), "proxy", dataplane, "err", err)
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

// add remembers a certificate. It has to be written. What is known of another instance is forgotten.
func (rs *records) add(s Subject, c issuedCertificate, now time.Time) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.proxies[s.Dataplane] = rs.ofInstance(s).with(c, now)
}

// know remembers the certificate of a connection, if it is not known.
func (rs *records) know(p Peer, now time.Time) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	h := rs.ofInstance(p.Subject)
	if !slices.ContainsFunc(h.Issued, func(c issuedCertificate) bool { return c.Serial == p.Serial }) {
		h = h.with(issuedCertificate{Serial: p.Serial, NotAfter: p.NotAfter, NotBefore: p.NotBefore, CA: p.CA, Path: p.Path}, now)
	}
	rs.proxies[p.Dataplane] = h
}

// ofInstance returns the history of that instance of a proxy. mu is held.
func (rs *records) ofInstance(s Subject) history {
	if h := rs.proxies[s.Dataplane]; h.Instance == s.Instance {
		return h
	}
	return history{Instance: s.Instance}
}

// forgetOthers forgets what is known of another instance than that of s, and returns whether it did.
func (rs *records) forgetOthers(s Subject) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	h, known := rs.proxies[s.Dataplane]
	if !known || h.Instance == s.Instance {
		return false
	}
	delete(rs.proxies, s.Dataplane)
	return true
}

// report remembers what a proxy uses, and returns whether that has to be written.
func (rs *records) report(dataplane string, use InUse) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	h, known := rs.proxies[dataplane]
	if !known || h.Bundle == use.Bundle && h.Epoch == use.Epoch && h.Serial == use.Serial && h.ServingCA == use.ServingCA {
		return false
	}
	h.Bundle, h.Epoch, h.Serial, h.ServingCA = use.Bundle, use.Epoch, use.Serial, use.ServingCA
	rs.proxies[dataplane] = h
	return true
}

// write writes the current history of a proxy, unless the proxy was forgotten meanwhile.
func (rs *records) write(dataplane string) error {
	if rs.storage == nil {
		return nil
	}
	file := rs.file(dataplane)
	file.Lock()
	defer file.Unlock()
	h, known := rs.of(dataplane)
	if !known {
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

// of returns the history of a proxy, and whether there is one.
func (rs *records) of(dataplane string) (history, bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	h, known := rs.proxies[dataplane]
	return h, known
}

// all returns the history of each proxy.
func (rs *records) all() map[string]history {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return maps.Clone(rs.proxies)
}

// forget removes the record of a proxy, from a storage only if its last certificate has expired, and returns whether it did. A caller that
// adds a certificate meanwhile waits for the file, and writes it again.
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
	h, known := rs.proxies[dataplane]
	if !known || rs.storage != nil && now.Before(h.expires()) {
		return false
	}
	delete(rs.proxies, dataplane)
	return true
}
