package restarts

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

const (
	// slotsAfter is how long an agent must be disconnected before agentv1.WhenAway_SLOTS applies, so that restarts of
	// replicas and moves of sessions do not trigger it.
	slotsAfter = time.Minute
	// minTurn and maxTurn bound the length of a turn, which depends on the settings of a pod's probes.
	minTurn, maxTurn = 30 * time.Second, 24 * time.Hour
)

// absence computes what guarded pods do while their agents are disconnected from the control plane.
type absence struct {
	cluster *cluster
	budgets countedBudgets
	// input and pods are the leader's input, nil before they are needed.
	input *restartbudget.Input
	pods  map[string]watch.Key
	turns map[restartbudget.WorkloadID]*turns // of workloads with a computed plan
}

// turns of the pods of a workload.
type turns struct {
	of    map[string]int // by UID
	count int
	time  time.Duration
}

func (c *cluster) newAbsence() *absence {
	return &absence{cluster: c, turns: map[restartbudget.WorkloadID]*turns{}, budgets: c.selectBudgets()}
}

// of returns the policy of the strictest budget that selects a guarded pod.
func (a *absence) of(key watch.Key, p *pod) *agentv1.WhenAway {
	all := a.budgets.of(key.Namespace, p)
	if len(all) == 0 {
		return &agentv1.WhenAway{}
	}
	strictest := slices.MinFunc(all, compareAway)
	switch strictest.whenAway {
	case agentv1.WhenAway_SLOTS:
		return a.slot(p)
	case agentv1.WhenAway_NATIVE:
		return &agentv1.WhenAway{Policy: agentv1.WhenAway_NATIVE, After: durationpb.New(strictest.nativeAfter)}
	}
	return &agentv1.WhenAway{}
}

// compareAway orders policies by strictness: hold, then slots, then native. Of two native policies, the one with the
// longer nativeAfter comes first.
func compareAway(a, b *budget) int {
	return cmp.Or(cmp.Compare(a.whenAway, b.whenAway), cmp.Compare(b.nativeAfter, a.nativeAfter))
}

// slot returns the turn of a pod, or the policy to hold if it has no turn.
func (a *absence) slot(p *pod) *agentv1.WhenAway {
	t, is := a.turns[p.workload]
	if !is {
		t = a.turnsOf(p.workload)
		a.turns[p.workload] = t
	}
	turn, is := t.of[p.uid]
	if !is {
		return &agentv1.WhenAway{}
	}
	return &agentv1.WhenAway{
		Policy: agentv1.WhenAway_SLOTS, After: durationpb.New(slotsAfter),
		Turn: uint32(turn), Turns: uint32(t.count), TurnTime: durationpb.New(t.time),
	}
}

// turnsOf assigns turns to the guarded pods of a workload, ordered by the hashes of their UIDs, whatever their
// template: as many pods share a turn as may be unavailable. Every second turn is empty, so that the restarts of one
// turn end before the next begins. All replicas must compute the same turns, even with another release. The result
// is empty if no pod may be unavailable, or if the desired number of pods is unknown.
func (a *absence) turnsOf(id restartbudget.WorkloadID) *turns {
	if a.input == nil {
		in, pods := a.cluster.input(nil)
		a.input, a.pods = &in, pods
	}
	w := a.input.Workloads[id]
	if w == nil { // its guarded pods are all newer than a.input
		return &turns{}
	}
	allowed := w.MaxUnavailable(id)
	if _, known := a.cluster.replicas(id); !known || allowed == 0 {
		return &turns{}
	}
	t := &turns{of: map[string]int{}, time: minTurn}
	for rank, uid := range ranked(w) {
		t.of[uid] = 2 * (rank / allowed)
		t.count = t.of[uid] + 2
		if p := a.cluster.pods.Get(a.pods[uid]); p != nil {
			t.time = max(t.time, p.decides)
		}
	}
	return t
}

// ranked returns the UIDs of the guarded pods of a workload that are not being deleted, ordered by their hashes.
func ranked(w *restartbudget.Workload) []string {
	type place struct {
		hash [sha256.Size]byte
		uid  string
	}
	var places []place
	for uid, p := range w.Pods {
		if len(p.Containers) > 0 && !p.Terminating {
			places = append(places, place{sha256.Sum256([]byte(uid)), uid})
		}
	}
	slices.SortFunc(places, func(a, b place) int { return bytes.Compare(a.hash[:], b.hash[:]) })
	uids := make([]string, len(places))
	for i := range places {
		uids[i] = places[i].uid
	}
	return uids
}

// decidesIn returns the maximum time from the first failure that the kubelet receives to the container's restart. In
// pods of earlier releases, it depends on the user's threshold.
func decidesIn(table mesh.ProbeTable) (longest time.Duration) {
	for _, p := range table {
		if p.Guarded {
			longest = max(longest, checksOf(p, max(p.FailureThreshold, mesh.GuardedFailureThreshold)))
		}
	}
	return longest
}

// checksOf returns the maximum time for n checks.
func checksOf(p mesh.Probe, n int32) time.Duration {
	seconds := int64(n) * (int64(p.PeriodSeconds) + int64(p.TimeoutSeconds))
	return time.Duration(min(seconds, int64(maxTurn/time.Second))) * time.Second
}
