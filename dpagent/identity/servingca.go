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

// maxEpoch is the highest epoch of serving CAs that a control plane has.
const maxEpoch = 1 << 53

// ServingCAOptions are the options of a ServingCA.
type ServingCAOptions struct {
	// Files of the work directory. Required.
	Files Files
	// Given is the path of the file with the PEM certificates that the agent was given. It is read for each connection. Required.
	Given string
	// ControlPlane is the address of the control plane: what one at another address has told does not count. Required.
	ControlPlane string
	// Logger to use. Required.
	Logger *slog.Logger
	// Registerer of the metrics. Required.
	Registerer prometheus.Registerer
}

// ServingCA is by which CAs the agent and its Envoy verify the control plane: those that the control plane has told last, which are kept for the
// next start, and those that the agent was given, unless the control plane has replaced them. It is safe for concurrent use.
type ServingCA struct {
	o     ServingCAOptions
	older atomic.Uint64

	mu    sync.Mutex
	told  toldCAs
	given []*x509.Certificate // when they were read last
	// written is what Envoy's file has, nil if that is not known.
	written []byte
}

// toldCAs is what the control plane has told.
type toldCAs struct {
	bundle // none before the first
	// replaced are the fingerprints of CAs that were trusted before, and are not in the bundle: a file that has them is older.
	replaced []string
}

// NewServingCA reads what was kept. If that cannot be used, the log says why, and the given CAs count alone.
func NewServingCA(o ServingCAOptions) *ServingCA {
	c := &ServingCA{o: o}
	told, err := readKept(o.Files, o.ControlPlane)
	if err == nil {
		c.told = told
	} else if !errors.Is(err, fs.ErrNotExist) {
		o.Logger.Error("kept CAs of the control plane not used, those that were given are", "given", o.Given, "err", err)
	}
	o.Registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sonde_dpagent_serving_ca_epoch", Help: "Epoch of the CAs that the control plane has told to verify it by, 0 before the first.",
	}, func() float64 {
		_, epoch := c.InUse()
		return float64(epoch)
	}), prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "sonde_dpagent_serving_ca_older_total", Help: "CAs of the control plane that were refused since they were older than those in use.",
	}, func() float64 { return float64(c.older.Load()) }))
	return c
}

// InUse returns ID and epoch of what the control plane has told last.
func (c *ServingCA) InUse() (id string, epoch int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told.id, c.told.epoch
}

// Roots reads the given CAs again, and returns those to verify the control plane by. Envoy gets the same.
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
	if err := c.write(c.told); err != nil { // it is tried again with the next connection
		c.o.Logger.Warn("CAs of the control plane not written for Envoy", "err", err)
	}
	pool := x509.NewCertPool()
	for _, ca := range c.trusted(c.told) {
		pool.AddCert(ca)
	}
	return pool, nil
}

// Restore writes the file that Envoy reads, for one that starts.
func (c *ServingCA) Restore() error {
	c.mu.Lock()
	c.written = nil // it may have been removed or damaged
	c.mu.Unlock()
	if _, err := c.Roots(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.write(c.told)
}

// Take puts in place what the control plane tells, and keeps it. On an error what was there before stays.
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
		return fmt.Errorf("CAs %q of epoch %d, after epoch %d: %w (%s in the work directory, to be removed if it was restored from a backup)",
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

// replacedBy returns what a bundle replaces: all that was trusted before and that it does not have.
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

// trusted returns what was told, and what was given and not replaced. mu is held.
func (c *ServingCA) trusted(told toldCAs) []*x509.Certificate {
	trusted := slices.Clone(told.roots)
	for _, ca := range c.given {
		if !slices.Contains(told.replaced, fingerprint(ca)) && !slices.ContainsFunc(trusted, ca.Equal) {
			trusted = append(trusted, ca)
		}
	}
	return trusted
}

// write writes what Envoy is to trust, if that differs. mu is held.
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

// parsePEM returns the certificates in a text. What is none is skipped, as x509.CertPool does.
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
