package cluster

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/partition"
)

// kept is the status of one object.
type kept struct {
	status v1alpha1.WatchedClusterStatus
	writes int
}

func (k *kept) Read(context.Context) (v1alpha1.WatchedClusterStatus, string, error) {
	return *k.status.DeepCopy(), strconv.Itoa(k.writes), nil
}

func (k *kept) Write(_ context.Context, s v1alpha1.WatchedClusterStatus, version string) (string, error) {
	if version != strconv.Itoa(k.writes) {
		return "", ErrConflict
	}
	k.status = *s.DeepCopy()
	k.writes++
	return strconv.Itoa(k.writes), nil
}

// stateOf has two zones.
func stateOf(v partition.Verdict, c partition.Cause, nodes, silent int) partition.State {
	return partition.State{
		partition.Whole: {Verdict: v, Cause: c, Members: nodes, Silent: silent},
		{Zone: "a"}:     {Verdict: partition.Seen, Members: nodes - 1}, {Zone: "b"}: {Verdict: partition.Seen, Members: 1, Silent: silent},
	}
}

// Counts are written with a verdict, otherwise rarely. A failed probe does not change them.
func TestCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kept{}
		l := &ledger{store: k, epoch: 1}
		judged := func(s partition.State, failed error) {
			t.Helper()
			if err := l.judged(t.Context(), s, failed); err != nil {
				t.Fatal(err)
			}
		}
		want := func(writes int, nodes, silent int32) {
			t.Helper()
			counts := []v1alpha1.NodeCount{{Nodes: nodes, Silent: silent}, {Zone: "a", Nodes: nodes - 1}, {Zone: "b", Nodes: 1, Silent: silent}}
			if d := cmp.Diff(counts, k.status.Counts); d != "" || k.writes != writes {
				t.Errorf("%d writes, want %d; %s", k.writes, writes, d)
			}
		}
		judged(stateOf(partition.Seen, "", 3, 0), nil)
		want(1, 3, 0)
		judged(stateOf(partition.Seen, "", 4, 1), nil)
		want(1, 3, 0)
		<-time.After(tellEvery)
		judged(stateOf(partition.Seen, "", 4, 1), nil)
		want(2, 4, 1)
		judged(stateOf(partition.Lost, partition.All, 5, 5), nil)
		want(3, 5, 5)
		<-time.After(tellEvery)
		judged(stateOf(partition.Unknown, partition.APIServerAway, 0, 0), errors.New("no answer"))
		want(4, 5, 5)
	})
}

// Changed errors of probes are written, but not after each probe.
func TestProbedMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kept{}
		l := &ledger{store: k, epoch: 1}
		fails := func(why string, writes int, message string) {
			t.Helper()
			if err := l.judged(t.Context(), stateOf(partition.Unknown, partition.Unreadable, 0, 0), errors.New(why)); err != nil {
				t.Fatal(err)
			}
			if got := k.status.Conditions[0].Message; got != message || k.writes != writes {
				t.Errorf("%d writes, %q, want %d, %q", k.writes, got, writes, message)
			}
		}
		fails("port 1", 1, "port 1")
		fails("port 2", 1, "port 1")
		<-time.After(tellEvery)
		fails("port 1", 1, "port 1")
		fails("port 3", 2, "port 3")
	})
}

// A cluster that is no longer probed keeps only its steps. A later leader's status is not overwritten.
func TestHalt(t *testing.T) {
	now := metav1.Now()
	k := &kept{status: v1alpha1.WatchedClusterStatus{
		Epoch: 1, Verdict: "lost", Cause: "all", Since: &now, LostSince: &now, Zones: []v1alpha1.WatchedZone{{Name: "a"}}, Counts: []v1alpha1.NodeCount{{Nodes: 1}},
		Steps: []v1alpha1.ScaleStep{{State: "Lowered"}},
	}}
	accepted := metav1.Condition{Type: "Accepted", Status: metav1.ConditionTrue, Reason: "Accepted"}
	if err := Halt(t.Context(), k, 2, accepted, "ShootHibernated", "not probed"); err != nil {
		t.Fatal(err)
	}
	s := k.status
	if s.Epoch != 2 || s.Verdict != "" || s.Cause != "" || s.Since != nil || s.LostSince != nil || s.Zones != nil || s.Counts != nil || len(s.Steps) != 1 || len(s.Conditions) != 2 || s.Conditions[1].Reason != "ShootHibernated" {
		t.Errorf("the status is %+v", s)
	}
	if err := Halt(t.Context(), k, 1, accepted, "ShootDeleted", "not probed"); !errors.Is(err, errFenced) || k.status.Conditions[1].Reason != "ShootHibernated" {
		t.Errorf("Halt() of an old leader = %v, the status is %+v", err, k.status)
	}
}
