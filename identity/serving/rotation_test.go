package serving

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/identity/secret"
	"github.com/sonde-mesh/sonde/internal/testing/secrettest"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func parse(t *testing.T, certificate []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(certificate)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// verifies reports whether a client with these CAs accepts c's certificate.
func verifies(t *testing.T, c *Certificate, cas []byte) bool {
	t.Helper()
	shown, err := c.TLS().GetCertificate(&tls.ClientHelloInfo{})
	if err != nil {
		t.Fatal(err)
	}
	return Verify(shown, Bundle{Name: "CAs", PEM: cas}, mesh.ServingName, c.o.Now()) == nil
}

func advance(t *testing.T, c *Certificate, missed ...string) {
	t.Helper()
	if advanced, err := c.AdvanceRotation(t.Context(), c.Rotation(), missed); err != nil || !advanced {
		t.Fatalf("AdvanceRotation() = %v, %v", advanced, err)
	}
}

func start(t *testing.T, c *Certificate) {
	t.Helper()
	if err := c.StartRotation(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// count returns the numbers of certificates and keys.
func count(data []byte) (certificates, keys int) {
	return bytes.Count(data, []byte("BEGIN CERTIFICATE")), bytes.Count(data, []byte("BEGIN PRIVATE KEY"))
}

// watched is a certificate, with the CAs of clients from before, during and after its rotation.
type watched struct {
	*testing.T
	*Certificate
	storage *secrettest.Memory
	changed <-chan struct{}
	// CAs of clients before, during and after the rotation, as far as they exist yet.
	old, both, alone []byte
}

// told checks whether a change of the trusted CAs was notified.
func (w *watched) told(want bool) {
	w.Helper()
	select {
	case <-w.changed:
		if !want {
			w.Error("told of a change although the trusted CAs are the same")
		}
	default:
		if want {
			w.Error("not told that other CAs are trusted")
		}
	}
}

// is checks the current step, which clients can connect, and the number of stored certificates and keys.
func (w *watched) is(step ca.Step, trustsOld, trustsNew bool, certificates, keys int) {
	w.Helper()
	if got := w.Rotation(); got.Step != step || got.CopiesErr != nil {
		w.Errorf("Rotation() = %+v, want step %q", got, step)
	}
	for client, want := range map[*[]byte]bool{&w.old: trustsOld, &w.both: true, &w.alone: trustsNew} {
		if *client != nil && verifies(w.T, w.Certificate, *client) != want {
			w.Errorf("step %q: a client that trusts %s connects: %v", step, *client, !want)
		}
	}
	if n, k := count(w.storage.Get(stateName)); n != certificates || k != keys {
		w.Errorf("step %q: %d certificates and %d keys are stored, want %d and %d", step, n, k, certificates, keys)
	}
	if n, _ := count(w.storage.Get(caName)); n != certificates || !verifies(w.T, open(w.T, Options{Storage: w.storage}), w.storage.Get(caName)) {
		w.Errorf("step %q: %s does not have what clients need", step, caName)
	}
	// An earlier release reads the first certificate and the key.
	if _, err := ca.Parse(w.storage.Get(caName), w.storage.Get(keyName)); err != nil {
		w.Errorf("step %q: an earlier release cannot start: %v", step, err)
	}
}

func TestRotation(t *testing.T) {
	storage := &secrettest.Memory{}
	c := open(t, Options{Storage: storage})
	w := &watched{T: t, Certificate: c, storage: storage, changed: c.Changed(), old: c.CA()}
	oldKey, first := storage.Get(keyName), c.Trusted()
	w.is(ca.StepNone, true, false, 1, 1)
	w.told(false)

	start(t, c)
	w.both = c.CA()
	w.alone = bytes.TrimPrefix(w.both, w.old)
	w.is(ca.StepTrustBoth, true, false, 2, 2)
	w.told(true)
	start(t, c) // does nothing
	w.told(false)

	advance(t, c, "default/web-3")
	w.is(ca.StepRenewLeaves, false, true, 2, 1)
	w.told(true)
	if bytes.Contains(storage.Get(stateName), bytes.TrimSpace(oldKey)) || bytes.Equal(storage.Get(keyName), oldKey) {
		t.Error("the old key is stored although it no longer signs")
	}

	advance(t, c)
	w.is(ca.StepTrustNew, false, true, 1, 1)
	w.told(true)
	advance(t, c)
	w.is(ca.StepNone, false, true, 1, 1)
	if !bytes.Equal(c.CA(), w.alone) || c.Trusted().Epoch <= first.Epoch || c.Trusted().ID == first.ID {
		t.Errorf("after the rotation %+v is trusted, want the new CA alone, with a higher epoch than %d", c.Trusted(), first.Epoch)
	}
}

func TestMissedProxiesAreKept(t *testing.T) {
	storage := &secrettest.Memory{}
	c := open(t, Options{Storage: storage})
	start(t, c)
	advance(t, c, "default/web-3", "shop/web-1")
	advance(t, c)
	advance(t, c)
	if got := open(t, Options{Storage: storage}).Rotation().Missed; !slices.Equal(got, []string{"default/web-3", "shop/web-1"}) {
		t.Errorf("missed after a restart = %v", got)
	}
	if err := c.Forget(t.Context(), []string{"default/web-3"}); err != nil || !slices.Equal(c.Rotation().Missed, []string{"shop/web-1"}) {
		t.Errorf("Forget() = %v, missed %v", err, c.Rotation().Missed)
	}
	start(t, c)
	if got := c.Rotation().Missed; len(got) > 0 {
		t.Errorf("missed in the next rotation = %v", got)
	}
	many := make([]string, maxMissed+1)
	for i := range many {
		many[i] = fmt.Sprintf("default/web-%04d", i)
	}
	advance(t, c, many...)
	if got := c.Rotation().Missed; len(got) != maxMissed {
		t.Errorf("%d are kept, want %d", len(got), maxMissed)
	}
}

// TestConnectionsOutliveTheRotation sends over a connection that was opened before the new CA signs.
func TestConnectionsOutliveTheRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const address = "10.1.0.1:5678"
		c, network := open(t, Options{Storage: &secrettest.Memory{}}), virtual.NewNetwork()
		listener, err := network.Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = listener.Close() }()
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				go func() {
					defer func() { _ = conn.Close() }()
					shown := tls.Server(conn, c.TLS())
					_, _ = io.Copy(shown, shown)
				}()
			}
		}()
		dial := func() net.Conn {
			t.Helper()
			conn, err := network.DialFrom("10.1.0.2")(t.Context(), "tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(c.CA())
			return tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: mesh.ServingName})
		}
		echo := func(conn net.Conn) {
			t.Helper()
			if _, err := conn.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		before := dial()
		defer func() { _ = before.Close() }()
		echo(before)
		start(t, c)
		for range 3 {
			advance(t, c)
			echo(before)
			now := dial()
			echo(now)
			_ = now.Close()
		}
	})
}

func TestProcessesFollowEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		storage := &secrettest.Memory{}
		a, b := open(t, Options{Storage: storage}), open(t, Options{Storage: storage})
		if a.Trusted().ID != b.Trusted().ID {
			t.Fatal("two processes have made two CAs")
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = a.Run(ctx) })
		running.Go(func() { _ = b.Run(ctx) })
		synctest.Wait()
		start(t, a)
		synctest.Wait()
		start(t, b) // the operator's --continue is stored, so the rotation continues
		for range 3 {
			from := b.Rotation()
			if advanced, err := b.AdvanceRotation(t.Context(), from, nil); err != nil || !advanced {
				t.Fatalf("AdvanceRotation() = %v, %v", advanced, err)
			}
			if advanced, err := a.AdvanceRotation(t.Context(), from, nil); err != nil || advanced {
				t.Fatalf("AdvanceRotation() of a process that saw the step before = %v, %v, want that it does nothing", advanced, err)
			}
			synctest.Wait()
			if x, y := a.Rotation(), b.Rotation(); x.Step != y.Step || x.Trusted != y.Trusted || x.Epoch != y.Epoch {
				t.Errorf("%+v and %+v", x, y)
			}
			if !verifies(t, a, b.CA()) || !verifies(t, b, a.CA()) {
				t.Error("a client of one does not accept the other")
			}
		}
		// Copies for clients are restored if another program has changed them.
		want := storage.Get(caName)
		if _, err := storage.Update(t.Context(), caName, []byte("x"), versionOf(storage, caName)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !bytes.Equal(storage.Get(caName), want) {
			t.Errorf("%s = %q after it was changed", caName, storage.Get(caName))
		}
		cancel()
		running.Wait()
	})
}

func versionOf(m *secrettest.Memory, name string) string {
	_, v, _ := m.Read(context.Background(), name)
	return v
}

func TestOrdersNeedARotation(t *testing.T) {
	c := open(t, Options{Storage: &secrettest.Memory{}})
	for name, order := range map[string]func(context.Context) error{"ForceRotation": c.ForceRotation, "ProceedRotation": c.ProceedRotation} {
		if err := order(t.Context()); !errors.Is(err, ca.ErrNoRotation) {
			t.Errorf("%s() = %v, want ErrNoRotation", name, err)
		}
	}
	start(t, c)
	if err := errors.Join(c.ForceRotation(t.Context()), c.ProceedRotation(t.Context())); err != nil {
		t.Fatal(err)
	}
	if r := open(t, Options{Storage: c.o.Storage}).Rotation(); !r.Forced || !r.Proceed {
		t.Errorf("after a restart: %+v, want forced and proceed", r)
	}
	for range 3 {
		advance(t, c)
	}
	start(t, c)
	if r := c.Rotation(); r.Forced || r.Proceed {
		t.Errorf("the next rotation begins as %+v, want neither forced nor proceed", r)
	}
}

// TestProceedIsOfOneRotation has a storage with Proceed but without a rotation.
func TestProceedIsOfOneRotation(t *testing.T) {
	storage := &secrettest.Memory{}
	open(t, Options{Storage: storage})
	storage.Put(stateName, bent(t, storage.Get(stateName), func(f map[string]any) { f["proceed"] = true }))
	c := open(t, Options{Storage: storage})
	start(t, c)
	if r := c.Rotation(); r.Proceed {
		t.Errorf("the rotation begins as %+v, want that it waits for the operator", r)
	}
}

// TestCopiesAreWrittenLater has a full disk when a step begins.
func TestCopiesAreWrittenLater(t *testing.T) {
	storage := &secrettest.Memory{}
	c := open(t, Options{Storage: storage})
	storage.Fail = func(name string) error {
		if name == caName {
			return errors.New("disk full")
		}
		return nil
	}
	if err := c.StartRotation(t.Context()); err == nil || !strings.Contains(err.Error(), "write serving-ca.crt: disk full") {
		t.Errorf("StartRotation() = %v", err)
	}
	if r := c.Rotation(); r.Step != ca.StepTrustBoth || r.CopiesErr == nil {
		t.Errorf("Rotation() = %+v, want an error of the copies", r)
	}
	caughtUp := func() {
		t.Helper()
		if err := c.CatchUp(t.Context()); err != nil || c.Rotation().CopiesErr != nil {
			t.Errorf("CatchUp() = %v, with an error of the copies: %v", err, c.Rotation().CopiesErr)
		}
		if !bytes.Equal(storage.Get(caName), c.CA()) {
			t.Errorf("%s is not what is trusted", caName)
		}
	}
	full := storage.Fail
	storage.Fail = nil
	caughtUp()
	// Another program has changed a copy, although the state is the same.
	storage.Put(caName, []byte("x"))
	storage.Fail = full
	if err := c.follow(t.Context()); err == nil || c.Rotation().CopiesErr == nil {
		t.Errorf("follow() = %v", err)
	}
	storage.Fail = nil
	caughtUp()
	reads := storage.Reads()
	if caughtUp(); storage.Reads() != reads {
		t.Error("it reads copies that are written")
	}
}

// TestErrorWaitsForNoCopies reads CopiesErr while the copies are written: waiting for that would be a deadlock.
func TestErrorWaitsForNoCopies(t *testing.T) {
	c := open(t, Options{Storage: &secrettest.Memory{}})
	c.copying.Lock()
	defer c.copying.Unlock()
	if err := c.ForceRotation(t.Context()); !errors.Is(err, ca.ErrNoRotation) {
		t.Errorf("ForceRotation() = %v, want ErrNoRotation", err)
	}
}

func TestManyConflicts(t *testing.T) {
	c := open(t, Options{Storage: busy{&secrettest.Memory{}}})
	if err := c.StartRotation(t.Context()); !errors.Is(err, secret.ErrConflict) {
		t.Errorf("StartRotation() = %v, want a conflict", err)
	}
}

// busy has another writer that is always faster.
type busy struct{ *secrettest.Memory }

func (b busy) Update(ctx context.Context, name string, data []byte, version string) (string, error) {
	b.Put(name, b.Get(name))
	return b.Memory.Update(ctx, name, data, version)
}
