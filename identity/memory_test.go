package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"iter"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/internal/testing/secrettest"
)

// view has the dataplanes of every mesh, each with its instance. nil means unknown.
type view map[string]string

func (v *view) proxies(string) (iter.Seq2[string, string], bool) { return maps.All(*v), *v != nil }

// openWithout opens the authority of a control plane that has secrets in storage, but no Options.Records.
func openWithout(t *testing.T, storage secrettest.Records, clock *clock, v *view) *Authority {
	t.Helper()
	return openWith(t, Options{Secrets: storage.Memory, Proxies: v.proxies, Now: clock.Now})
}

var pod = Subject{Mesh: "default", Dataplane: "db-0.shop", Path: "/ns/shop/sa/db", Instance: "4f8c7a52-90ab-4c6e-8a3e-000000000001"}

// issueTo returns the peer of a new certificate, as after a handshake.
func issueTo(t *testing.T, a *Authority, s Subject, validity time.Duration) Peer {
	t.Helper()
	if err := a.Ensure(t.Context(), s.Mesh, 0); err != nil {
		t.Fatal(err)
	}
	c, err := a.Issue(t.Context(), Request{Subject: s, CSR: newCSR(t, ca.NewKey(), nil), Validity: validity})
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Verify([]*x509.Certificate{parse(t, c.Chain[0])})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func wantWaiting(t *testing.T, a *Authority, want map[string]time.Time) {
	t.Helper()
	got := map[string]time.Time{}
	for _, w := range a.mustRotation(t).Waiting {
		got[w.Dataplane] = w.Expires
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the rotation waits for (-want +got):\n%s", diff)
	}
}

// advance begins the next step, unless the rotation waits for a proxy.
func (a *Authority) advance(ctx context.Context) (bool, error) {
	r, err := a.Rotation("default")
	if err != nil {
		return false, err
	}
	return a.AdvanceRotation(ctx, "default", r.Progress, nil)
}

func (a *Authority) mustAdvance(t *testing.T, want bool) {
	t.Helper()
	if got, err := a.advance(t.Context()); err != nil || got != want {
		t.Errorf("AdvanceRotation() = %v, %v, want %v", got, err, want)
	}
}

func TestInstanceIsInTheCertificate(t *testing.T) {
	a := open(t, newMemory(), nil)
	got := issueTo(t, a, pod, time.Hour)
	if diff := cmp.Diff(pod, got.Subject); diff != "" || got.SPIFFEID != "spiffe://default.sonde.internal/ns/shop/sa/db" {
		t.Errorf("Verify() = %q (-want +got):\n%s", got.SPIFFEID, diff)
	}
	workload := web
	workload.Path = mesh.WorkloadPath("db")
	if got := issueTo(t, a, workload, time.Hour); got.Path == pod.Path || got.Instance != "" {
		t.Errorf("Verify() = %+v for a workload", got)
	}
	for _, bad := range []string{"a b", "a=b", strings.Repeat("a", 65), "ü"} {
		s := pod
		s.Instance = bad
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), "instance") {
			t.Errorf("Validate() of instance %q = %v", bad, err)
		}
	}
}

// After a restart nothing is known about proxies, and each may have a certificate of the earlier process.
func TestRotationWithoutRecords(t *testing.T) {
	clock, storage := newClock(), newMemory()
	v := view{"db-0.shop": pod.Instance, "dead": "", "new": ""}
	before := openWithout(t, storage, clock, &v)
	peer := issueTo(t, before, pod, time.Hour)
	issueTo(t, before, Subject{Mesh: "default", Dataplane: "deleted", Path: pod.Path}, time.Hour)
	if names, _ := storage.List("meshes/default"); len(names) != 1 {
		t.Errorf("the storage has %v, want the CA alone", names)
	}

	clock.Add(time.Minute)
	started := clock.Now()
	v = nil
	a := openWithout(t, storage, clock, &v)
	if err := a.StartRotation(t.Context(), "default", 0); err != nil {
		t.Fatal(err)
	}
	a.mustAdvance(t, false) // the proxies are unknown
	v = view{"db-0.shop": pod.Instance, "dead": "", "new": ""}
	end := started.Add(24 * time.Hour)
	wantWaiting(t, a, map[string]time.Time{"db-0.shop": end, "dead": end, "new": end})

	reportAll(t, a, peer, peer.Serial)
	if got, joined := a.PathInUse(pod.ID()); got != pod.Path || !joined {
		t.Errorf("PathInUse() = %q, %v after the report of a session", got, joined)
	}
	if due, err := a.Due(peer); err != nil || due.NewBundle || due.NewLeaf || !due.LeafExpires.Equal(peer.NotAfter) {
		t.Errorf("Due() = %+v, %v, want nothing, and the leaf's end", due, err)
	}
	fresh := issueTo(t, a, Subject{Mesh: "default", Dataplane: "new", Path: pod.Path}, 48*time.Hour)
	reportAll(t, a, fresh, fresh.Serial)
	a.mustAdvance(t, false)
	clock.Add(24*time.Hour - time.Second)
	a.mustAdvance(t, false)
	clock.Add(24*time.Hour + time.Second) // the longest validity is 48 h now
	a.mustAdvance(t, true)
	if got := a.mustRotation(t).Step; got != ca.StepRenewLeaves {
		t.Errorf("step = %q, want renew leaves", got)
	}
	a.mustAdvance(t, false) // the leaves are of the old CA, and "dead" counts again

	renewed := issueTo(t, a, pod, time.Hour)
	reportAll(t, a, renewed, renewed.Serial)
	v = view{"db-0.shop": pod.Instance}
	a.mustAdvance(t, true)
	wantWaiting(t, a, map[string]time.Time{"db-0.shop": clock.Now().Add(48 * time.Hour)})
}

// Another process may know a proxy before this process gets its Dataplane.
func TestRotationWaitsForWhatOthersKnow(t *testing.T) {
	clock, storage := newClock(), newMemory()
	v := view{}
	other, a := openWithout(t, storage, clock, &v), openWithout(t, storage, clock, &v)
	peer := issueTo(t, other, pod, time.Hour)
	if err := a.Ensure(t.Context(), pod.Mesh, 0); err != nil {
		t.Fatal(err)
	}
	if err := a.Hear(peer, nil); err != nil {
		t.Fatal(err)
	}
	if err := a.StartRotation(t.Context(), "default", 0); err != nil {
		t.Fatal(err)
	}
	wantWaiting(t, a, map[string]time.Time{"db-0.shop": peer.NotAfter})
	a.mustAdvance(t, false)
	clock.Add(time.Hour + time.Second)
	a.mustAdvance(t, true)
}

// A proxy with the same name but another instance has not completed any step.
func TestAnotherInstanceHasDoneNothing(t *testing.T) {
	clock := newClock()
	v := view{"db-0.shop": pod.Instance}
	a := openWithout(t, newMemory(), clock, &v)
	peer := issueTo(t, a, pod, time.Hour)
	if err := a.StartRotation(t.Context(), "default", 0); err != nil {
		t.Fatal(err)
	}
	reportAll(t, a, peer, peer.Serial)
	wantWaiting(t, a, map[string]time.Time{})
	next := pod
	next.Instance = "another"
	v["db-0.shop"] = next.Instance
	wantWaiting(t, a, map[string]time.Time{"db-0.shop": clock.Now().Add(24 * time.Hour)})
	if !a.Replaced(next) || a.Replaced(next) {
		t.Error("Replaced() does not say once that there was another instance")
	}
	if _, joined := a.PathInUse(pod.ID()); joined {
		t.Error("the new instance has joined already")
	}
}

func TestSweepWithoutRecords(t *testing.T) {
	clock := newClock()
	v := view{}
	a := openWithout(t, newMemory(), clock, &v)
	issueTo(t, a, pod, time.Hour)
	issueTo(t, a, web, time.Hour)
	clock.Add(dataplaneLag - time.Second)
	if forgotten, err := a.Sweep(func(mesh.ID) bool { return false }); len(forgotten) > 0 || err != nil {
		t.Errorf("Sweep() = %v, %v of proxies whose Dataplanes may not have been heard of yet", forgotten, err)
	}
	clock.Add(time.Second)
	forgotten, err := a.Sweep(func(id mesh.ID) bool { return id == web.ID() })
	if diff := cmp.Diff([]mesh.ID{pod.ID()}, forgotten); diff != "" || err != nil {
		t.Errorf("Sweep() = %v (-want +got):\n%s", err, diff)
	}
	if diff := cmp.Diff([]mesh.ID{web.ID()}, a.Joined()); diff != "" {
		t.Errorf("Joined() (-want +got):\n%s", diff)
	}
}

// Clients without a valid certificate cannot cause reads of the storage.
func TestUnknownMeshReadsNothing(t *testing.T) {
	foreign := open(t, newMemory(), nil)
	c, _ := issue(t, foreign, "elsewhere", "web-1", time.Hour)
	storage := newMemory()
	a := open(t, storage, nil)
	before := storage.Reads()
	if _, err := a.Verify([]*x509.Certificate{parse(t, c.Chain[0])}); !errors.Is(err, ErrCANotFound) {
		t.Errorf("Verify() = %v, want ErrCANotFound", err)
	}
	if storage.Reads() != before {
		t.Error("the storage was read")
	}
}

// share runs two Authorities on one storage.
func share(t *testing.T, storage secrettest.Records) (a, b *Authority) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	v := view{}
	start := func() *Authority {
		a := openWith(t, Options{Secrets: storage.Memory, Proxies: v.proxies})
		running.Go(func() {
			if err := a.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		return a
	}
	a, b = start(), start()
	t.Cleanup(func() { cancel(); running.Wait() })
	synctest.Wait()
	return a, b
}

// TestFollowedMayGoOn shows that Followed may begin the next step itself.
func TestFollowedMayGoOn(t *testing.T) {
	storage, v := newMemory(), view{}
	a := openWith(t, Options{Secrets: storage.Memory, Proxies: v.proxies})
	if err := a.Ensure(t.Context(), "default", 0); err != nil {
		t.Fatal(err)
	}
	var b *Authority
	b = openWith(t, Options{Secrets: storage.Memory, Proxies: v.proxies, Followed: func(string) {
		if _, err := b.advance(t.Context()); err != nil { // a deadlock if the state were held
			t.Error(err)
		}
	}})
	if err := a.StartRotation(t.Context(), "default", 0); err != nil {
		t.Fatal(err)
	}
	if err := b.follow(t.Context(), "default"); err != nil {
		t.Fatal(err)
	}
	if got := b.mustRotation(t).Step; got != ca.StepRenewLeaves {
		t.Errorf("step = %q, want the one after that which was followed", got)
	}
}

// TestFollowedOfAllThatWasTakenOver makes b load a step of a otherwise than by following.
func TestFollowedOfAllThatWasTakenOver(t *testing.T) {
	for name, load := range map[string]func(t *testing.T, a, b *Authority) error{
		"first opened by the watch": func(*testing.T, *Authority, *Authority) error { return nil },
		"opened by Ensure": func(t *testing.T, _, b *Authority) error {
			return b.Ensure(t.Context(), "default", 0)
		},
		"taken over to record a Mesh": func(t *testing.T, a, b *Authority) error {
			if err := b.follow(t.Context(), "default"); err != nil {
				return err
			}
			if _, err := a.advance(t.Context()); err != nil {
				return err
			}
			return b.Record(t.Context(), "default", &mesh.MeshSpec{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			storage, v, followed := newMemory(), view{}, 0
			count := func(string) { followed++ }
			b := openWith(t, Options{Secrets: storage.Memory, Proxies: v.proxies, Followed: count})
			a := openWith(t, Options{Secrets: storage.Memory, Proxies: v.proxies})
			if err := a.Ensure(t.Context(), "default", 0); err != nil {
				t.Fatal(err)
			}
			if err := a.StartRotation(t.Context(), "default", 0); err != nil {
				t.Fatal(err)
			}
			if err := load(t, a, b); err != nil {
				t.Fatal(err)
			}
			before := followed
			for range 2 { // like the watch
				if err := b.follow(t.Context(), "default"); err != nil {
					t.Fatal(err)
				}
			}
			if followed != before+1 {
				t.Errorf("Followed was called %d times, want once", followed-before)
			}
			if x, y := a.mustRotation(t).Step, b.mustRotation(t).Step; x != y {
				t.Errorf("steps %q and %q", x, y)
			}
		})
	}
}

func TestOneOfTwoMakesTheCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := share(t, newMemory())
		var both sync.WaitGroup
		for _, one := range []*Authority{a, b, a, b} {
			both.Go(func() {
				if err := one.Ensure(t.Context(), "default", 0); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		if a.signing(t).ID != b.signing(t).ID {
			t.Error("the two have different CAs")
		}
	})
}

// advanceAll performs all steps of a rotation without waiting proxies.
func (a *Authority) advanceAll(t *testing.T) {
	t.Helper()
	for again := true; again; {
		var err error
		if again, err = a.advance(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Both processes perform a complete rotation at the same time: each step happens once, and both end with the same CA.
func TestTwoRotateAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		storage := newMemory()
		a, b := share(t, storage)
		if err := a.Ensure(t.Context(), "default", 0); err != nil {
			t.Fatal(err)
		}
		if err := b.Ensure(t.Context(), "default", 0); err != nil {
			t.Fatal(err)
		}
		first := a.signing(t).ID
		var both sync.WaitGroup
		for _, one := range []*Authority{a, b} {
			both.Go(func() {
				if err := one.StartRotation(t.Context(), "default", 0); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		read := func() *state {
			s, err := a.decodeState("default", storage.Get(secretPath("default")))
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		if s := read(); len(s.CAs) != 2 || s.Step() != ca.StepTrustBoth {
			t.Fatalf("the storage has %d CAs in step %q, want 2 that are trusted", len(s.CAs), s.Step())
		}
		for _, one := range []*Authority{a, b} {
			both.Go(func() { one.advanceAll(t) })
		}
		both.Wait()
		s := read()
		if s.Rotation != nil || len(s.CAs) != 1 || s.Signing.ID == first {
			t.Errorf("the storage has %d CAs in step %q", len(s.CAs), s.Step())
		}
		synctest.Wait()
		if x, y := a.signing(t).ID, b.signing(t).ID; x != s.Signing.ID || y != s.Signing.ID {
			t.Errorf("the two sign with %s and %s, the storage has %s", x, y, s.Signing.ID)
		}
	})
}
