//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// ours selects a namespace even if the control plane ignores Kuma's labels.
var ours = map[string]string{"sonde.dev/sidecar-injection": "enabled"}

// bystander is a namespace that is labelled for Kuma, in a cluster where Kuma owns that label: Sonde must not change
// its pods.
type bystander struct {
	*namespace
	pods int
}

// check creates a pod, and fails the test if any pod differs from its original.
func (b *bystander) check(when string) {
	b.t.Helper()
	b.pods++
	b.create(newPod("p"+strconv.Itoa(b.pods), "node2"))
	for i := range b.pods {
		name := "p" + strconv.Itoa(i+1)
		b.waitReady(name)
		b.checkPodsUntouched(when, name)
		p := b.pod(name)
		if len(p.Spec.InitContainers) > 0 || len(p.Spec.Containers) != 1 || p.Annotations[mesh.AnnotationInjectionWarnings] != "" {
			b.t.Errorf("%s: pod %s of Kuma's namespace has the containers %d and %d, and the annotations %v", when, name, len(p.Spec.InitContainers), len(p.Spec.Containers), p.Annotations)
		}
	}
}

// images returns the images of the pods' sidecars.
func (n *namespace) images(pods ...string) []string {
	n.t.Helper()
	list, err := cluster.client.CoreV1().Pods(n.name).List(n.t.Context(), metav1.ListOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	var all []string
	for i := range list.Items { // a pod deleted meanwhile has none
		if p := &list.Items[i]; slices.Contains(pods, p.Name) {
			c := container(p, mesh.ContainerSidecar)
			all = append(all, c.Image[strings.LastIndex(c.Image, ":")+1:])
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// checkImages fails the test unless the sidecars of web and of the client have these versions.
func (w *watched) checkImages(when, web, client string) {
	w.t.Helper()
	if got := w.images(w.podsOf("web")...); !slices.Equal(got, []string{web}) {
		w.t.Errorf("%s: the sidecars of web are of %q, want %q", when, got, web)
	}
	if got := w.images("client"); !slices.Equal(got, []string{client}) {
		w.t.Errorf("%s: the sidecar of the client is of %q, want %q", when, got, client)
	}
}

// upgrade is a cluster upgraded from the previous release to this release, under about 200 requests a second, with
// agents of both, beside a namespace that is labelled for Kuma.
type upgrade struct {
	*release
	before    int // revision of Helm's release
	bystander *bystander
	watched   *watched
}

func newUpgrade(t *testing.T) *upgrade {
	t.Helper()
	r := newRelease(t, "--set=config.injection.kumaLabels=false")
	u := &upgrade{release: r, bystander: &bystander{namespace: newNamespace(t, injected)}}
	r.removeAll()
	r.installAnew(r.previous)
	r.checkDefinitions("the release before is there", false)
	u.before = r.revision()
	u.bystander.check("the release before is there")
	u.watched = newWatched(t, ours)
	u.watched.create(newBudget("web", "maxUnavailable: 1"))
	u.watched.checkImages("the release before is there", "previous", "previous")

	t.Cleanup(watchAdmission(t))
	r.install(r.now)
	r.checkDefinitions("upgraded", true)
	u.watched.checkCaughtUp("upgraded, with agents of the release before")
	return u
}

// TestAloneUpgrade upgrades from the previous release to this release. It runs alone.
func TestAloneUpgrade(t *testing.T) {
	u := newUpgrade(t)
	u.watched.rollWeb("upgraded")
	u.watched.checkImages("upgraded", "dev", "previous")
	u.bystander.check("upgraded")
	u.watched.checkBudget("upgraded", "web")
	u.watched.logRate()
}

// TestAloneRollback upgrades to this release, rolls back, and upgrades again. It runs alone.
func TestAloneRollback(t *testing.T) {
	u := newUpgrade(t)
	w, b := u.watched, u.bystander
	w.rollWeb("upgraded")
	u.helm("rollback", "sonde", strconv.Itoa(u.before), "--wait", "--timeout=3m")
	(&namespace{t: t, name: systemNamespace}).waitReplicas()
	// The previous release records no plain text, so these filter chains of the new pods change: open connections on
	// them end after the drain.
	pass(t, mesh.DefaultDrainTime+10*time.Second)
	w.acceptEnds("rolled back, with agents of this release", "stranger tcp")
	u.checkDefinitions("rolled back", true) // definitions are never downgraded
	w.checkCaughtUp("rolled back, with agents of this release")
	w.checkImages("rolled back", "dev", "previous")
	w.rollWeb("rolled back")
	w.checkImages("rolled back, and rolled", "previous", "previous")
	b.check("rolled back")

	u.install(u.now)
	w.rollWeb("upgraded again")
	w.checkImages("upgraded again", "dev", "previous")
	w.checkBudget("upgraded again", "web")
	b.check("upgraded again")
	w.logRate()
}

// TestUpgradeProbes makes the probes of the fidelity test while the control plane alternates between the previous and
// this release, so that pods have agents of both. It runs alone, and not in make e2e.
func TestUpgradeProbes(t *testing.T) {
	r := newRelease(t)
	w := newWatched(t, ours)
	stop := r.alternate()
	sameProbes(t, probesOn(t, "node2", probeCases), plain, inMesh)
	t.Logf("the release was replaced %d times while probes were asked", stop())
	r.install(r.now)
	w.checkCaughtUp("the release was replaced while probes were asked")
	w.logRate()
}

// logRate logs the calls per second.
func (w *watched) logRate() {
	w.t.Helper()
	calls := 0
	for _, l := range w.loads {
		calls += l.report().Calls
	}
	w.t.Logf("%d calls, %.0f a second, of which %d have failed", calls, float64(calls)/time.Since(w.began).Seconds(), w.failedNow())
}

// alternate alternates between the previous and this release until stop is called; stop returns how often.
func (r *release) alternate() (stop func() int) {
	ctx, cancel := context.WithCancel(r.t.Context())
	times, done := 0, make(chan error, 1)
	go func() {
		for ; ctx.Err() == nil; times++ {
			c := r.previous
			if times%2 == 1 {
				c = r.now
			}
			if err := r.tryInstall(c); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	return func() int {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
		return times
	}
}

// These may be missing: the control plane's last judgement of zones, and the epoch of a previous release.
var mayBeLeft = []string{"secrets/sonde-freeze", "secrets/sonde-leader"}

// TestAloneReinstall uninstalls, and installs again: meanwhile, pods keep running and new pods get no sidecar.
// Afterwards, all objects of users and of the control plane exist, such as the CAs of meshes. It runs alone.
func TestAloneReinstall(t *testing.T) {
	r := newRelease(t)
	w := newWatched(t, ours)
	w.create(newBudget("web", "maxUnavailable: 1"))
	there := r.definitions()
	had := r.left()
	r.helm("uninstall", "sonde", "--wait")
	w.wait("the end of the control plane", func() error {
		if left := (&namespace{t: t, name: systemNamespace}).selected(controlPlaneLabel); len(left) > 0 {
			return fmt.Errorf("there are %q", left)
		}
		return nil
	})
	// As docs/guides/uninstall.md lists them.
	want := []string{
		"configmaps/sonde-serving-ca", "leases/sonde-cp", "secrets/sonde-admin-token", "secrets/sonde-ca-default", "secrets/sonde-dataplane-token.key", "secrets/sonde-default-mesh-made",
		"secrets/sonde-serving-ca.crt", "secrets/sonde-serving-ca.json", "secrets/sonde-serving-ca.key",
	}
	for _, name := range mayBeLeft {
		if slices.Contains(had, name) {
			want = append(want, name)
		}
	}
	slices.Sort(want)
	if d := cmp.Diff(want, r.left()); d != "" {
		t.Errorf("objects left in the namespace of the control plane (-want +got):\n%s", d)
	}
	if left := r.clusterWide(); len(left) > 0 {
		t.Errorf("the cluster still has %q", left)
	}
	if d := cmp.Diff(there, r.definitions()); d != "" {
		t.Errorf("the definitions have changed (-was +is):\n%s", d)
	}
	w.checkLoads("uninstalled")
	w.checkUntouched("uninstalled")
	w.create(newPod("late", "node2"))
	w.waitReady("late")
	if p := w.pod("late"); len(p.Spec.InitContainers) > 0 {
		t.Errorf("pod late has %d more containers without a control plane", len(p.Spec.InitContainers))
	}

	r.installAnew(r.now)
	w.checkBudget("installed again", "web")
	w.checkCaughtUp("installed again")
	w.rollWeb("installed again")
	w.deletePod("late")
	w.create(newPod("late", "node2"))
	w.waitReady("late")
	if p := w.pod("late"); len(p.Spec.InitContainers) != 2 {
		t.Errorf("pod late has %d more containers, want kuma-init and kuma-sidecar", len(p.Spec.InitContainers))
	}
}
