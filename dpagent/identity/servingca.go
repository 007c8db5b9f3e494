package identity

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// maxEpoch is the highest possible epoch of a control plane's serving CAs.
const maxEpoch = 1 << 53

// ServingCAOptions are the options of a ServingCA.
type ServingCAOptions struct {
	// Files of the work directory. Required.
	Files Files
	// Given is the path of the PEM file with the configured CAs (--ca-cert-file). It is read for each connection.
	// Required.
	Given string
	// ControlPlane is the address of the control plane. Stored CAs from another address are ignored. Required.
	ControlPlane string
	// Logger to use. Required.
	Logger *slog.Logger
	// Registerer of the metrics. Required.
	Registerer prometheus.Registerer
}

// ServingCA holds the CAs that verify the control plane for the agent and Envoy: the last CAs that the control plane
// sent, which are stored for the next start, and the configured CAs that the control plane has not replaced. It is safe
// for concurrent use.
type ServingCA struct {
	o     ServingCAOptions
	older atomic.Uint64

	mu    sync.Mutex
	told  toldCAs
	given []*x509.Certificate // the configured CAs as last read
	// written is the content of Envoy's file, nil if unknown.
	written []byte
}

// toldCAs are the CAs sent by the control plane.
type toldCAs struct {
	bundle // empty before the first message
	// replaced are the fingerprints of CAs that were trusted before and are not in the bundle: a file with these CAs is
	// out of date.
	replaced []string
}

// NewServingCA loads the stored CAs. If they are unusable, it logs why and uses only the configured CAs.
func NewServingCA(o ServingCAOptions) *ServingCA {
	c := &ServingCA{o: o}
	told, err := readKept(o.Files, o.ControlPlane)
	if err == nil {
		c.told = told
	} else if !errors.Is(err, fs.ErrNotExist) {
		o.Logger.Error("ignoring cached control plane CAs, using --ca-cert-file", "given", o.Given, "err", err)
	}
	o.Registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sonde_dpagent_serving_ca_epoch",
		Help: "Epoch of the last CAs received from the control plane, 0 before the first.",
	}, func() float64 {
		_, epoch := c.InUse()
		return float64(epoch)
	}), prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "sonde_dpagent_serving_ca_older_total",
		Help: "CAs of the control plane that were rejected because they were older than those in use.",
	}, func() float64 { return float64(c.older.Load()) }))
	return c
}

// InUse returns the ID and epoch of the last received CAs.
func (c *ServingCA) InUse() (id string, epoch int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told.id, c.told.epoch
}

// Roots rereads the configured CAs and returns the CAs that verify the control plane. Envoy gets the same CAs.
func (c *ServingCA) Roots() (*x509.CertPool, error) {
	text, err := os.ReadFile(c.o.Given)
	if err != nil {
		return nil, fmt.Errorf("read the control plane's CA: %w", err)
	}
	given := parsePEM(text)
	if len(given) == 0 {
		return nil, fmt.Errorf("read the control plane's CA: %s has no PEM certificate", c.o.Given)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.given = given
	if err := c.write(c.told); err != nil { // retried with the next connection
		c.o.Logger.Warn("failed to write the control plane's CAs for envoy", "err", err)
	}
	pool := x509.NewCertPool()
	for _, ca := range c.trusted(c.told) {
		pool.AddCert(ca)
	}
	return pool, nil
}

// Restore writes the file for a starting Envoy.
func (c *ServingCA) Restore() error {
	c.mu.Lock()
	c.written = nil // the file may have been removed or damaged
	c.mu.Unlock()
	if _, err := c.Roots(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.write(c.told)
}

// Take installs and stores CAs that the control plane sent. On an error the previous CAs stay in use.
func (c *ServingCA) Take(b *agentv1.Bundle) error {
	next, err := parseBundle(b)
	if err != nil {
		return err
	}
	if next.epoch <= 0 || next.epoch > maxEpoch {
		return fmt.Errorf("read CAs %q: epoch: %d: must be from 1 to %d", next.id, next.epoch, int64(maxEpoch))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if next.epoch < c.told.epoch {
		c.older.Add(1)
		return fmt.Errorf("CAs %q of epoch %d, after epoch %d: %w (if the control plane was restored from a backup, remove %s from the work directory)",
			next.id, next.epoch, c.told.epoch, ErrOlderBundle, fileKept)
	}
	told := toldCAs{bundle: next, replaced: c.told.replacedBy(next, c.given)}
	if err := c.write(told); err != nil {
		return err
	}
	if err := told.keep(c.o.Files, c.o.ControlPlane); err != nil {
		return err
	}
	c.told = told
	return nil
}

// replacedBy returns the fingerprints of the CAs that a bundle replaces: the CAs trusted before that are not in it.
func (t toldCAs) replacedBy(next bundle, given []*x509.Certificate) []string {
	replaced := slices.Clone(t.replaced)
	for _, ca := range slices.Concat(t.roots, given) {
		replaced = append(replaced, fingerprint(ca))
	}
	slices.Sort(replaced)
	replaced = slices.DeleteFunc(slices.Compact(replaced), func(known string) bool {
		return slices.ContainsFunc(next.roots, func(ca *x509.Certificate) bool { return fingerprint(ca) == known })
	})
	return replaced[:min(len(replaced), maxReplaced)]
}

// trusted returns the received CAs and the configured CAs that are not replaced. The caller holds mu.
func (c *ServingCA) trusted(told toldCAs) []*x509.Certificate {
	trusted := slices.Clone(told.roots)
	for _, ca := range c.given {
		if !slices.Contains(told.replaced, fingerprint(ca)) && !slices.ContainsFunc(trusted, ca.Equal) {
			trusted = append(trusted, ca)
		}
	}
	return trusted
}

// write writes the CAs for Envoy if they have changed. The caller holds mu.
func (c *ServingCA) write(told toldCAs) error {
	data, err := bundleSecret(mesh.SecretServingCA, bundle{epoch: told.epoch, roots: c.trusted(told)})
	if err != nil || bytes.Equal(data, c.written) {
		return err
	}
	c.written = nil
	if err := c.o.Files.Write(mesh.FileServingCA, data); err != nil {
		return err
	}
	c.written = data
	return nil
}

func fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

// parsePEM returns the certificates in a PEM text. It skips invalid parts, as x509.CertPool does.
func parsePEM(text []byte) (all []*x509.Certificate) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return all
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			all = append(all, c)
		}
	}
}
