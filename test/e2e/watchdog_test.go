//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/watchdog"
)

// The tests of this file run in their own cluster (`make e2e-watchdog`), one after the other: four nodes in two
// zones, whose controller-manager sets nodes to Unknown after 40 s without a report.

// The kubelets of three nodes are disconnected for two minutes while their pods continue: the controllers that would
// replace the machines are scaled down before the first node is Unknown, nothing is deleted, and afterwards all is as
// before.
func TestWatchdogKubeletsCutOff(t *testing.T) {
	s := newScene(t, sceneOptions{})
	r := newTraffic(t)
	start := r.report()
	cut := s.seen.startCut(t)
	s.waitReplicas(map[string]int32{"machines": 0, "controller": 0, "autoscaler": 0})
	r.checkServed("before nodes were Unknown", start)
	s.seen.waitUnknown(3)
	s.checkDownFirst()
	s.waitVerdict("lost", "all")
	for name, n := range original {
		want := map[string]string{"replicas": strconv.Itoa(int(n)), "meltdown-protection-active": ""}
		if diff := cmp.Diff(want, s.annotations(name)); diff != "" {
			t.Errorf("annotations of %s (-want +got):\n%s", name, diff)
		}
	}
	pass(t, time.Until(cut.began.Add(away-20*time.Second)))
	late := r.report() // no pod stays without calls for long, including pods of a zone of which half is seen
	pass(t, 20*time.Second)
	r.checkServed("the kubelets were cut off", late)
	cut.heal()

	s.waitWell(original)
	r.waitServed(r.pods)
	r.checkServed("all is back", late)
	s.checkScaled(map[string][]string{"machines": {"0", "1"}, "controller": {"0", "2"}, "autoscaler": {"0", "1"}})
	s.seen.checkNoneDeleted("the kubelets were cut off")
	unknown, changes, _ := s.seen.all()
	t.Logf("after the cut: %v; Unknown: %v; %v", changes, unknown, r.report())
}

// The same while the watchdog is paused: healthy machines are replaced, and calls fail.
func TestWatchdogPausedLoses(t *testing.T) {
	s := newScene(t, sceneOptions{paused: true})
	r := newTraffic(t)
	cut := s.seen.startCut(t)
	s.waitVerdict("lost", "all") // it still has a verdict
	s.seen.waitDeleted(3)
	r.wait("failed calls", func() error {
		if now := r.report(); now.Failed == 0 {
			return fmt.Errorf("%v", now)
		}
		return nil
	})
	unknown, changes, deleted := s.seen.all()
	t.Logf("after the cut: Unknown: %v; deleted: %v; %v", unknown, deleted, r.report())
	if len(changes) > 0 {
		t.Errorf("dependants were scaled although the watchdog is paused: %v", changes)
	}
	cut.heal()
	replaceDeleted(t)
	waitMesh(t)
}

// One node is dead: the watchdog does nothing, and its machine is replaced.
func TestWatchdogOneNodeDead(t *testing.T) {
	s := newScene(t, sceneOptions{})
	t.Cleanup(func() { testbed(t, "link", "4", "up") })
	s.seen.begin()
	testbed(t, "link", "4", "down")
	s.seen.waitDeleted(1)
	s.waitVerdict("seen", "")
	unknown, changes, deleted := s.seen.all()
	if len(changes) > 0 || len(deleted) != 1 || deleted[0].what != "node4" {
		t.Errorf("node 4 was dead: dependants were scaled: %v; deleted: %v", changes, deleted)
	}
	t.Logf("after the death: Unknown: %v; deleted: %v", unknown, deleted)
	testbed(t, "link", "4", "up")
	replaceDeleted(t)
	waitMesh(t)
}

// The API server is stopped for longer than a lease takes to expire: nothing is scaled, not even after it is back.
// Then nodes are Unknown until their kubelets have reported, for up to a minute, independently of the watchdog,
// because a kubelet's earlier reports change no condition. Machines are replaced after 10 minutes, as usual.
func TestWatchdogAPIServerAway(t *testing.T) {
	s := newScene(t, sceneOptions{replaceAfter: 10 * time.Minute})
	t.Cleanup(func() { testbed(t, "start", "apiserver") })
	testbed(t, "stop", "apiserver")
	pass(t, time.Minute)
	testbed(t, "start", "apiserver")
	s.waitVerdict("seen", "")
	waitNodes(t, cluster.nodes...)
	pass(t, 20*time.Second) // some more probes
	s.waitVerdict("seen", "")
	s.seen.checkNothing("the API server was away")
	waitMesh(t)
}

// The watchdog's leader is killed between the two levels: the next leader continues, without a lost or repeated step,
// and keeps replicas that were set meanwhile.
func TestWatchdogLeaderKilled(t *testing.T) {
	s := newScene(t, sceneOptions{delay: 20 * time.Second})
	system := &namespace{t: t, name: systemNamespace}
	cut := s.seen.startCut(t)
	s.waitReplicas(map[string]int32{"machines": 0, "autoscaler": 0})
	first, err := s.status()
	if err != nil {
		t.Fatal(err)
	}
	leader := watchdogLeader(t)
	for _, p := range system.processes(system.pod(leader)) {
		p.kill(t)
	}
	if _, changes, _ := s.seen.all(); slices.ContainsFunc(changes, func(c sighting) bool { return strings.HasPrefix(c.what, "controller") }) {
		t.Fatalf("the leader was not killed between the levels: %v", changes)
	}
	s.waitReplicas(map[string]int32{"machines": 0, "autoscaler": 0, "controller": 0})
	if now, err := s.status(); err != nil || now.Epoch <= first.Epoch {
		t.Errorf("epoch %d, %v, want a later epoch than %d, of another leader", now.Epoch, err, first.Epoch)
	}
	for name, n := range original {
		if got := s.annotations(name)["replicas"]; got != strconv.Itoa(int(n)) {
			t.Errorf("%s has the annotation replicas %q, want %d", name, got, n)
		}
	}
	const set = 3
	s.scale("autoscaler", set)
	pass(t, 15*time.Second) // some probes
	cut.heal()
	s.waitWell(map[string]int32{"machines": 1, "controller": 2, "autoscaler": set})
	s.checkScaled(map[string][]string{"machines": {"0", "1"}, "controller": {"0", "2"}, "autoscaler": {"0", strconv.Itoa(set)}})
	s.seen.checkNoneDeleted("the leader was killed")
	_, changes, _ := s.seen.all()
	t.Logf("after the cut: %v", changes)
	system.waitRolledOutAs("sonde-watchdog", "app.kubernetes.io/name=sonde-watchdog")
	waitMesh(t)
}

// cut is a disconnection of kubelets.
type cut struct {
	began time.Time
	heal  func()
}

// startCut disconnects kubelets, and restarts the time of all sightings.
func (s *sightings) startCut(t *testing.T) cut {
	t.Helper()
	s.begin()
	c := cut{began: time.Now()}
	c.heal = cutKubelets(t)
	return c
}

// checkDownFirst fails the test unless all dependants were scaled to 0, the lower level first, before the first node
// was Unknown.
func (s *scene) checkDownFirst() {
	s.t.Helper()
	unknown, changes, _ := s.seen.all()
	if len(changes) != len(original) || changes[len(changes)-1].what != "controller 0" {
		s.t.Errorf("dependants were scaled like this: %v, want machines and autoscaler to 0, and then controller", changes)
		return
	}
	if last := changes[len(changes)-1]; last.at >= unknown[0].at {
		s.t.Errorf("the last dependant was at 0 when nodes were Unknown already: %v, %v", last, unknown)
	}
}

// checkScaled fails the test unless the replicas of dependants have changed like this.
func (s *scene) checkScaled(want map[string][]string) {
	s.t.Helper()
	if diff := cmp.Diff(want, s.seen.scaled()); diff != "" {
		s.t.Errorf("replicas of dependants, in order (-want +got):\n%s", diff)
	}
}

// watchdogLeader returns the name of the leading pod.
func watchdogLeader(t *testing.T) string {
	t.Helper()
	lease, err := cluster.client.CoordinationV1().Leases(systemNamespace).Get(t.Context(), watchdog.LeaseName, metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		t.Fatalf("no leader: %v, %v", lease, err)
	}
	return *lease.Spec.HolderIdentity
}

// waitMesh waits until the control plane is complete, and would inject pods: the next test creates
// some.
func waitMesh(t *testing.T) {
	t.Helper()
	(&namespace{t: t, name: systemNamespace}).waitReplicas()
	if err := awaitAdmission(); err != nil {
		t.Fatal(err)
	}
}
