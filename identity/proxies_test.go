package identity

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/internal/testing/secrettest"
)

func nobody(mesh.ID) bool { return false }

// wantPath checks the path and state of a proxy.
func wantPath(t *testing.T, a *Authority, proxy mesh.ID, path string, joined bool) {
	t.Helper()
	if w, j := a.PathInUse(proxy); w != path || j != joined {
		t.Errorf("PathInUse(%q) = %q, %v, want %q, %v", proxy, w, j, path, joined)
	}
}

func TestPathInUse(t *testing.T) {
	clock, storage := newClock(), newMemory()
	a := open(t, storage, clock.Now)
	wantPath(t, a, "default/web-1", "", false)
	first, _ := issue(t, a, "default", "web-1", time.Hour)
	wantPath(t, a, "default/web-1", "/workload/web", true)
	wantPath(t, a, "default/web-2", "", false)

	peer := Peer{Subject: web}
	reportAll(t, a, peer, first.Serial)
	second, err := a.Issue(t.Context(), Request{Subject: Subject{Mesh: "default", Dataplane: "web-1", Path: "/workload/api"}, CSR: newCSR(t, ca.NewKey(), nil), Validity: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	wantPath(t, a, "default/web-1", "/workload/web", true) // issued, but not in use yet
	reportAll(t, a, peer, second.Serial)
	wantPath(t, a, "default/web-1", "/workload/api", true)

	wantPath(t, open(t, storage, clock.Now), "default/web-1", "/workload/api", true)
}

func TestRecordOfAnEarlierRelease(t *testing.T) {
	const now = `,"path":"/workload/web"`
	tests := map[string]struct{ written, path string }{
		"with the name of the workload": {`,"workload":"web"`, "/workload/web"},
		"without it":                    {"", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			storage := newMemory()
			a := open(t, storage, newClock().Now)
			issue(t, a, "default", "web-1", time.Hour)
			name := "meshes/default/proxies/web-1.json"
			data, err := storage.Read(name)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(data), now) {
				t.Fatalf("the record does not name the path: %s", data)
			}
			if err := storage.Write(name, []byte(strings.ReplaceAll(string(data), now, tc.written))); err != nil {
				t.Fatal(err)
			}
			wantPath(t, open(t, storage, newClock().Now), "default/web-1", tc.path, true)
		})
	}
}

// An invalid record does not prevent a start. Its proxy counts as joined, and a rotation waits until it has a known
// certificate.
func TestBadRecord(t *testing.T) {
	clock, storage := newClock(), newMemory()
	issue(t, open(t, storage, clock.Now), "default", "web-1", time.Hour)
	for _, bad := range []string{"", "{", "[]", `{"issued": 1}`} {
		if err := storage.Write("meshes/default/proxies/web-1.json", []byte(bad)); err != nil {
			t.Fatal(err)
		}
		a := open(t, storage, clock.Now)
		wantPath(t, a, "default/web-1", "", true)
		if !a.HasCertificate("default/web-1") {
			t.Errorf("%q: the proxy counts as one without a certificate", bad)
		}
	}
	a := open(t, storage, clock.Now)
	if err := a.StartRotation(t.Context(), "default", 0); err != nil {
		t.Fatal(err)
	}
	if moved, err := a.advance(t.Context()); err != nil || moved {
		t.Errorf("AdvanceRotation() = %v, %v before the proxy has been heard", moved, err)
	}
	c, _ := issue(t, a, "default", "web-1", time.Hour)
	reportAll(t, a, Peer{Subject: web}, c.Serial)
	if moved, err := a.advance(t.Context()); err != nil || !moved {
		t.Errorf("AdvanceRotation() = %v, %v after the proxy has both CAs", moved, err)
	}
}

// unreadable is a storage with an unreadable record, such as a directory at its path.
type unreadable struct {
	Records
	name string
}

func (u unreadable) Read(name string) ([]byte, error) {
	if name == u.name {
		return nil, syscall.EISDIR
	}
	return u.Records.Read(name)
}

// An unreadable record does not prevent a start, like an invalid one.
func TestUnreadableRecord(t *testing.T) {
	clock, storage := newClock(), newMemory()
	a := open(t, storage, clock.Now)
	issue(t, a, "default", "web-1", time.Hour)
	issue(t, a, "default", "web-2", time.Hour)
	a = openWith(t, Options{Secrets: storage.Memory, Records: unreadable{storage, "meshes/default/proxies/web-1.json"}, Now: clock.Now})
	wantPath(t, a, "default/web-1", "", true)
	wantPath(t, a, "default/web-2", "/workload/web", true)
}

// A lost CA is logged as an error, since joined proxies do not trust the new CA.
func TestLostCAIsTold(t *testing.T) {
	for name, tc := range map[string]struct {
		joined int
		want   string
	}{
		"a new mesh": {0, `"level":"INFO","msg":"created CA"`},
		"a lost CA":  {2, `"level":"ERROR","msg":"CA not found, created another one: joined proxies are not trusted until they join again"`},
	} {
		t.Run(name, func(t *testing.T) {
			clock, storage := newClock(), newMemory()
			a := open(t, storage, clock.Now)
			for i := range tc.joined {
				issue(t, a, "default", fmt.Sprint("web-", i), time.Hour)
			}
			left := secrettest.Records{Memory: &secrettest.Memory{}}
			for i := range tc.joined {
				record := fmt.Sprintf("meshes/default/proxies/web-%d.json", i)
				data, err := storage.Read(record)
				if err != nil {
					t.Fatal(err)
				}
				if err := left.Write(record, data); err != nil {
					t.Fatal(err)
				}
			}
			var log bytes.Buffer
			a = openWith(t, Options{Secrets: left.Memory, Records: left, Now: clock.Now, Logger: slog.New(slog.NewJSONHandler(&log, nil))})
			if err := a.Ensure(t.Context(), "default", 0); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(log.String(), tc.want) {
				t.Errorf("the log is %s, want %s", log.String(), tc.want)
			}
		})
	}
}

func TestSweepKeepsRecords(t *testing.T) {
	clock, storage := newClock(), newMemory()
	a := open(t, storage, clock.Now)
	for _, name := range []string{"kept", "gone"} {
		issue(t, a, "default", name, time.Hour)
	}
	issue(t, a, "default", "valid", 3*time.Hour)
	clock.Add(2 * time.Hour)
	// keep may call the authority, since no lock is held.
	keep := func(proxy mesh.ID) bool { return proxy == "default/kept" || a.HasCertificate(proxy) }
	forgotten, err := a.Sweep(keep)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]mesh.ID{"default/gone"}, forgotten); diff != "" {
		t.Errorf("Sweep() (-want +got):\n%s", diff)
	}
	for _, a := range []*Authority{a, open(t, storage, clock.Now)} {
		if joined := a.Joined(); len(joined) != 2 {
			t.Errorf("Joined() = %v, want two", joined)
		}
		wantPath(t, a, "default/kept", "/workload/web", true)
		wantPath(t, a, "default/gone", "", false)
	}
	if a.HasCertificate("default/kept") {
		t.Error("HasCertificate() = true for a certificate that has expired")
	}
}

// A slow write only delays operations that depend on it.
func TestSlowWriteDelaysNobodyElse(t *testing.T) {
	tests := map[string]struct {
		file string
		act  func(a *Authority) error
		// issues checks that certificates of mesh "default" are issued at the same time.
		issues bool
	}{
		"a new mesh": {"meshes/new/ca.json", func(a *Authority) error { return a.Ensure(t.Context(), "new", 0) }, true},
		"the record of another proxy": {"meshes/default/proxies/slow.json", func(a *Authority) error {
			_, err := a.Issue(t.Context(), Request{Subject: Subject{Mesh: "default", Dataplane: "slow", Path: "/workload/web"}, CSR: newCSR(t, ca.NewKey(), nil)})
			return err
		}, false}, // false, since a few proxies share a lock
		"a step of the rotation": {"meshes/default/ca.json", func(a *Authority) error { return a.StartRotation(t.Context(), "default", 0) }, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			files := newMemory()
			c, _ := issue(t, open(t, files, nil), "default", "web-1", time.Hour)
			started, released := make(chan struct{}), make(chan struct{})
			a := open(t, files, nil)
			files.Before = func(name string) {
				if name == tc.file {
					close(started)
					<-released
				}
			}
			ended := make(chan error)
			if _, err := a.Due(Peer{Subject: web}); err != nil { // the mesh is in memory
				t.Fatal(err)
			}
			go func() { ended <- tc.act(a) }()
			<-started
			if p, err := a.Verify([]*x509.Certificate{parse(t, c.Chain[0])}); err != nil {
				t.Error(err)
			} else if _, err := a.Due(p); err != nil {
				t.Error(err)
			}
			if tc.issues {
				issue(t, a, "default", "web-1", time.Hour)
			}
			close(released)
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}
