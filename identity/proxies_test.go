package identity

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
)

func nobody(mesh.ID) bool { return false }

// wantWorkload checks what is known about a proxy.
func wantWorkload(t *testing.T, a *Authority, proxy mesh.ID, workload string, joined bool) {
	t.Helper()
	if w, j := a.WorkloadInUse(proxy); w != workload || j != joined {
		t.Errorf("WorkloadInUse(%q) = %q, %v, want %q, %v", proxy, w, j, workload, joined)
	}
}

func TestWorkloadInUse(t *testing.T) {
	clock, storage := newClock(), newMemory()
	a := open(t, storage, clock.Now)
	wantWorkload(t, a, "default/web-1", "", false)
	first, _ := issue(t, a, "default", "web-1", time.Hour)
	wantWorkload(t, a, "default/web-1", "web", true)
	wantWorkload(t, a, "default/web-2", "", false)

	peer := Peer{Subject: web}
	reportAll(t, a, peer, first.Serial)
	second, err := a.Issue(Request{Subject: Subject{Mesh: "default", Dataplane: "web-1", Workload: "api"}, CSR: newCSR(t, ca.NewKey(), nil), Validity: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	wantWorkload(t, a, "default/web-1", "web", true) // it is issued, and not in use yet
	reportAll(t, a, peer, second.Serial)
	wantWorkload(t, a, "default/web-1", "api", true)

	wantWorkload(t, open(t, storage, clock.Now), "default/web-1", "api", true)
}

func TestRecordOfAnEarlierRelease(t *testing.T) {
	storage := newMemory()
	a := open(t, storage, newClock().Now)
	issue(t, a, "default", "web-1", time.Hour)
	name := "meshes/default/proxies/web-1.json"
	data, err := storage.Read(name)
	if err != nil {
		t.Fatal(err)
	}
	old := strings.ReplaceAll(string(data), `,"workload":"web"`, "")
	if old == string(data) {
		t.Fatalf("the record does not name the workload: %s", data)
	}
	if err := storage.Write(name, []byte(old)); err != nil {
		t.Fatal(err)
	}
	wantWorkload(t, open(t, storage, newClock().Now), "default/web-1", "", true)
}

func TestSweepKeepsRecords(t *testing.T) {
	clock, storage := newClock(), newMemory()
	a := open(t, storage, clock.Now)
	for _, name := range []string{"kept", "gone"} {
		issue(t, a, "default", name, time.Hour)
	}
	issue(t, a, "default", "valid", 3*time.Hour)
	clock.Add(2 * time.Hour)
	// keep may call the authority: no lock is held.
	keep := func(proxy mesh.ID) bool { return proxy == "default/kept" || a.HasCertificate(proxy) }
	forgotten, err := a.Sweep(keep)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]mesh.ID{"default/gone"}, forgotten); diff != "" {
		t.Errorf("Sweep() (-want +got):\n%s", diff)
	}
	for _, a := range []*Authority{a, open(t, storage, clock.Now)} {
		joined, err := a.Joined()
		if err != nil || len(joined) != 2 {
			t.Errorf("Joined() = %v, %v, want two", joined, err)
		}
		wantWorkload(t, a, "default/kept", "web", true)
		wantWorkload(t, a, "default/gone", "", false)
	}
	if a.HasCertificate("default/kept") {
		t.Error("HasCertificate() = true for a certificate that has expired")
	}
}

// slowStorage delays the writes of one file until it is released.
type slowStorage struct {
	*memory
	name              string
	started, released chan struct{}
}

func (s slowStorage) Write(name string, data []byte) error {
	if name == s.name {
		close(s.started)
		<-s.released
	}
	return s.memory.Write(name, data)
}

// A slow write delays only what depends on it.
func TestSlowWriteDelaysNobodyElse(t *testing.T) {
	tests := map[string]struct {
		file string
		act  func(a *Authority) error
		// issues says that certificates of mesh "default" are issued meanwhile.
		issues bool
	}{
		"a new mesh": {"meshes/new/ca.json", func(a *Authority) error { return a.Ensure("new", 0) }, true},
		"the record of another proxy": {"meshes/default/proxies/slow.json", func(a *Authority) error {
			_, err := a.Issue(Request{Subject: Subject{Mesh: "default", Dataplane: "slow", Workload: "web"}, CSR: newCSR(t, ca.NewKey(), nil)})
			return err
		}, false}, // a few proxies share a lock
		"a step of the rotation": {"meshes/default/ca.json", func(a *Authority) error { return a.StartRotation("default", 0) }, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			files := newMemory()
			c, _ := issue(t, open(t, files, nil), "default", "web-1", time.Hour)
			slow := slowStorage{memory: files, name: tc.file, started: make(chan struct{}), released: make(chan struct{})}
			a := open(t, slow, nil)
			ended := make(chan error)
			if _, err := a.Due(Peer{Subject: web}); err != nil { // the mesh is in memory
				t.Fatal(err)
			}
			go func() { ended <- tc.act(a) }()
			<-slow.started
			if p, err := a.Verify([]*x509.Certificate{parse(t, c.Chain[0])}); err != nil {
				t.Error(err)
			} else if _, err := a.Due(p); err != nil {
				t.Error(err)
			}
			if tc.issues {
				issue(t, a, "default", "web-1", time.Hour)
			}
			close(slow.released)
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}
