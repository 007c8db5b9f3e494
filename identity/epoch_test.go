package identity

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/secrettest"
)

// The first epoch is the time of the CA. The epoch only grows when the roots change.
func TestEpochs(t *testing.T) {
	clock, storage := newClock(), newMemory()
	a := openWithout(t, storage, clock, &view{})
	if err := a.Ensure(t.Context(), "default", 0); err != nil {
		t.Fatal(err)
	}
	made := clock.Now().Unix()
	want := func(step string, epoch int64) {
		t.Helper()
		if got := bundle(t, a).Epoch; got != epoch {
			t.Errorf("%s: epoch %d, want %d", step, got, epoch)
		}
		if got := bundle(t, openWithout(t, storage, clock, &view{})).Epoch; got != epoch {
			t.Errorf("%s: epoch %d after a restart, want %d", step, got, epoch)
		}
	}
	want("made", made)
	if err := a.StartRotation(t.Context(), "default", 0); err != nil {
		t.Fatal(err)
	}
	want("in the same second", made+1)
	clock.Add(time.Hour)
	if err := a.ForceRotation(t.Context(), "default"); err != nil {
		t.Fatal(err)
	}
	want("forced", made+1)
	a.mustAdvance(t, true)
	want("renew leaves", made+1)
	clock.Add(time.Hour)
	a.mustAdvance(t, true)
	want("trust new", made+2*3600)
	a.mustAdvance(t, true)
	want("done", made+2*3600)
}

// edit changes the stored CA.
func edit(t *testing.T, m secrettest.Records, change func(map[string]any)) {
	t.Helper()
	data, err := m.Read(secretPath("default"))
	if err != nil {
		t.Fatal(err)
	}
	var f map[string]any
	if err := json.Unmarshal(data, &f); err != nil {
		t.Fatal(err)
	}
	change(f)
	if data, err = json.Marshal(f); err != nil {
		t.Fatal(err)
	}
	m.Put(secretPath("default"), data)
}

func TestEpochOfTheStorage(t *testing.T) {
	clock, storage := newClock(), newMemory()
	a := openWithout(t, storage, clock, &view{})
	if err := a.Ensure(t.Context(), "default", 0); err != nil {
		t.Fatal(err)
	}
	for value, wrong := range map[float64]string{0: "epoch: 0: must be from 1 to 9007199254740992", -1: "epoch: -1: must be", 1 << 60: "must be from 1 to"} {
		edit(t, storage, func(f map[string]any) { f["epoch"] = int64(value) })
		err := a.follow(t.Context(), "default")
		if err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("epoch %.0f: %v, want %q", value, err, wrong)
		}
		if _, err := New(t.Context(), a.o); err == nil || !strings.Contains(err.Error(), "epoch: ") {
			t.Errorf("epoch %.0f: a start says %v", value, err)
		}
	}
	edit(t, storage, func(f map[string]any) { f["epoch"] = bundle(t, a).Epoch - 1 })
	err := a.follow(t.Context(), "default")
	if err == nil || !strings.Contains(err.Error(), "must be at least") {
		t.Errorf("a CA that was restored is used: %v", err)
	}
	edit(t, storage, func(f map[string]any) { delete(f, "epoch") })
	earlier := openWithout(t, storage, clock, &view{})
	if got, want := bundle(t, earlier).Epoch, earlier.signing(t).Cert.NotBefore.Unix(); got != want {
		t.Errorf("epoch %d of a CA of an earlier release, want %d, when it was made", got, want)
	}
}

// A replica that has missed the last steps does not request an agent to repeat steps that it has completed.
func TestReplicaLags(t *testing.T) {
	clock, storage := newClock(), newMemory()
	v := view{"db-0.shop": pod.Instance}
	a := openWithout(t, storage, clock, &v)
	first := issueTo(t, a, pod, time.Hour)
	lagging := openWithout(t, storage, clock, &v) // it does not run, so that it misses changes
	report := func(at *Authority, leaf Peer) {
		t.Helper()
		use := InUse{Bundle: bundle(t, a).ID, Epoch: bundle(t, a).Epoch, Serial: leaf.Serial, CA: leaf.CA, NotAfter: leaf.NotAfter}
		if err := at.Report(first, use); err != nil { // over the connection with its first certificate
			t.Fatal(err)
		}
	}
	due := func(at *Authority, bundle, leaf bool) {
		t.Helper()
		if due, err := at.Due(first); err != nil || due.NewBundle != bundle || due.NewLeaf != leaf {
			t.Errorf("Due() = bundle %v, leaf %v, %v, want %v, %v", due.NewBundle, due.NewLeaf, err, bundle, leaf)
		}
	}
	step := func(leaf Peer) {
		t.Helper()
		report(a, leaf)
		clock.Add(25 * time.Hour) // all other certificates have expired
		report(a, leaf)
		a.mustAdvance(t, true)
	}
	if err := a.StartRotation(t.Context(), "default", 0); err != nil {
		t.Fatal(err)
	}
	report(lagging, first)
	due(lagging, false, false)
	step(first)
	due(a, false, true)
	second := issueTo(t, a, pod, 24*time.Hour)
	if second.CA == first.CA {
		t.Fatal("the second leaf is of the first CA")
	}
	report(lagging, second) // the leaf is of a CA that lagging does not know
	due(lagging, false, false)
	report(a, second)
	due(a, false, false)

	inStep := openWithout(t, storage, clock, &v) // at the same step, but has issued no certificate
	report(inStep, second)
	due(inStep, false, false)
	report(inStep, first)
	due(inStep, false, true)
}

// What an agent reports about its leaf cannot delay a rotation longer than the maximum validity.
func TestReportedEndIsLimited(t *testing.T) {
	clock, storage := newClock(), newMemory()
	v := view{"db-0.shop": pod.Instance}
	a := openWithout(t, storage, clock, &v)
	p := issueTo(t, a, pod, time.Hour)
	if err := a.StartRotation(t.Context(), "default", 0); err != nil {
		t.Fatal(err)
	}
	use := InUse{Bundle: "old", Serial: "1", CA: p.CA, NotAfter: clock.Now().Add(1000 * time.Hour)}
	if err := a.Report(p, use); err != nil {
		t.Fatal(err)
	}
	wantWaiting(t, a, map[string]time.Time{"db-0.shop": clock.Now().Add(24 * time.Hour)})
	use.CA = strings.Repeat("x", maxReported+1)
	if err := a.Report(p, use); err == nil {
		t.Error("a report of any length is taken")
	}
}
