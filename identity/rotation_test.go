package identity

import (
	"bytes"
	"crypto/x509"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/identity/ca"
)

func (a *Authority) mustRotation(t *testing.T) Rotation {
	t.Helper()
	r, err := a.Rotation("default")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestStepIsWrittenBeforeItActs(t *testing.T) {
	clock, storage := newClock(), newMemory()
	a := open(t, storage, clock.Now)
	c, _ := issue(t, a, "default", "web-1", time.Hour)
	peer, err := a.Verify([]*x509.Certificate{parse(t, c.Chain[0])})
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("disk full")
	steps := []struct {
		name string
		act  func() error
		done func()
		want ca.Step
	}{
		{name: "start", act: func() error { return a.StartRotation(t.Context(), "default", 0) }, want: ca.StepTrustBoth},
		{name: "force", act: func() error { return a.ForceRotation(t.Context(), "default") }, want: ca.StepTrustBoth},
		{name: "renew leaves", want: ca.StepRenewLeaves, done: func() { reportAll(t, a, peer, c.Serial) }},
		{name: "trust new", want: ca.StepTrustNew, done: func() {
			c, _ = issue(t, a, "default", "web-1", time.Hour)
			reportAll(t, a, peer, c.Serial)
		}},
		{name: "end", want: ca.StepNone, done: func() { reportAll(t, a, peer, c.Serial) }},
	}
	for _, step := range steps {
		act := step.act
		if act == nil {
			step.done()
			act = func() error {
				_, err := a.advance(t.Context())
				return err
			}
		}
		before, beforeBundle := a.mustRotation(t), bundle(t, a)
		storage.Fail = func(string) error {
			storage.Fail = nil // the next write succeeds
			return broken
		}
		if err := act(); !errors.Is(err, broken) {
			t.Fatalf("%s: error = %v, want the storage's", step.name, err)
		}
		if diff := cmp.Diff(before, a.mustRotation(t)) + cmp.Diff(beforeBundle, bundle(t, a)); diff != "" {
			t.Errorf("%s acted though it was not written: %s", step.name, diff)
		}
		if err := act(); err != nil {
			t.Fatal(err)
		}
		if got := a.mustRotation(t).Step; got != step.want {
			t.Fatalf("%s: step = %q, want %q", step.name, got, step.want)
		}
		restarted := open(t, storage, clock.Now)
		if diff := cmp.Diff(a.mustRotation(t), restarted.mustRotation(t)) + cmp.Diff(bundle(t, a), bundle(t, restarted)); diff != "" {
			t.Errorf("%s: after a restart: %s", step.name, diff)
		}
	}
}

func bundle(t *testing.T, a *Authority) Bundle {
	t.Helper()
	m, err := a.mesh("default")
	if err != nil {
		t.Fatal(err)
	}
	return m.Current().bundle
}

// reportAll reports that the proxy has the newest bundle, and the leaf with this serial number.
func reportAll(t *testing.T, a *Authority, p Peer, serial string) {
	t.Helper()
	if err := a.Report(p, InUse{Bundle: bundle(t, a).ID, Serial: "0" + strings.ToUpper(serial)}); err != nil {
		t.Fatal(err)
	}
}

func TestForceNeedsARotation(t *testing.T) {
	a := open(t, newMemory(), nil)
	if err := a.Ensure(t.Context(), "default", 0); err != nil {
		t.Fatal(err)
	}
	if err := a.ForceRotation(t.Context(), "default"); !errors.Is(err, ca.ErrNoRotation) {
		t.Errorf("error = %v, want ErrNoRotation", err)
	}
}

// A leaf that is issued during a rotation is signed by the CA of that step, or the rotation waits for its proxy.
func TestNoLeafSlipsThroughAStep(t *testing.T) {
	a := open(t, newMemory(), nil)
	issue(t, a, "default", "web-0", time.Hour)
	var running sync.WaitGroup
	request := Request{Subject: web, CSR: newCSR(t, ca.NewKey(), nil)}
	for range 4 {
		running.Go(func() {
			for range 20 {
				if _, err := a.Issue(t.Context(), request); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 5 {
		if err := a.StartRotation(t.Context(), "default", 0); err != nil {
			t.Error(err)
		}
		if _, err := a.advance(t.Context()); err != nil {
			t.Error(err)
		}
	}
	running.Wait()
	if got := a.mustRotation(t); got.Step != ca.StepTrustBoth || len(got.Waiting) != 2 {
		t.Errorf("rotation = %+v, want one that waits for both proxies in its first step", got)
	}
	c, _ := issue(t, a, "default", "web-1", time.Hour)
	p := Peer{Subject: web}
	reportAll(t, a, p, c.Serial)
	if due, err := a.Due(p); err != nil || due.NewBundle || due.NewLeaf || !due.LeafExpires.Equal(c.NotAfter) {
		t.Errorf("Due() = %+v, %v, want nothing, and the leaf's end", due, err)
	}
}

func TestRecordsAreBounded(t *testing.T) {
	clock, storage := newClock(), newMemory()
	a := open(t, storage, clock.Now)
	inUse, _ := issue(t, a, "default", "web-1", time.Hour)
	p := Peer{Subject: web}
	reportAll(t, a, p, inUse.Serial)
	for range 3 * maxIssued {
		issue(t, a, "default", "web-1", time.Hour)
	}
	m, err := a.mesh("default")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(m.records.proxies["web-1"].Issued); n != maxIssued {
		t.Errorf("%d certificates are remembered, want %d", n, maxIssued)
	}
	if due, err := a.Due(p); err != nil || due.NewLeaf {
		t.Errorf("Due() = %+v, %v: the leaf in use is forgotten", due, err)
	}
	if err := a.Report(p, InUse{Bundle: strings.Repeat("x", 100)}); err == nil {
		t.Error("a report of any length is taken")
	}
	if !a.HasCertificate("default/web-1") {
		t.Error("HasCertificate() = false")
	}
	clock.Add(time.Hour)
	if _, err := a.Sweep(nobody); err != nil {
		t.Fatal(err)
	}
	if names, _ := storage.List("meshes/default/proxies"); len(names) != 0 || a.HasCertificate("default/web-1") {
		t.Errorf("records = %v after their certificates are over", names)
	}
}

func TestEndOfCAIsLoggedOnceADay(t *testing.T) {
	var out bytes.Buffer
	clock, storage := newClock(), newMemory()
	a := openWith(t, Options{Secrets: storage.Memory, Records: storage, Now: clock.Now, Logger: slog.New(slog.NewTextHandler(&out, nil))})
	if err := a.Ensure(t.Context(), "default", 100*24*time.Hour); err != nil {
		t.Fatal(err)
	}
	warnings := func() int {
		if _, err := a.Sweep(nobody); err != nil {
			t.Fatal(err)
		}
		return strings.Count(out.String(), "expires soon")
	}
	clock.Add(89 * 24 * time.Hour)
	if n := warnings(); n != 0 {
		t.Errorf("%d warnings with 11 of 100 days left", n)
	}
	clock.Add(2 * 24 * time.Hour)
	warnings()
	if n := warnings(); n != 1 {
		t.Errorf("%d warnings with 9 days left, want 1", n)
	}
	clock.Add(25 * time.Hour)
	if n := warnings(); n != 2 {
		t.Errorf("%d warnings a day later, want 2", n)
	}
}
