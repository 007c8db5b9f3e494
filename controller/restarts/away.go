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
	// slotsAfter is how long the session must have been away with agentv1.WhenAway_SLOTS: replicas that restart, and sessions that move, start nothing.
	slotsAfter = time.Minute
	// minTurn and maxTurn bound what a pod may have written about its probes.
	minTurn, maxTurn = 30 * time.Second, 24 * time.Hour
)

// absence finds what pods do while the control plane is away.
type absence struct {
	cluster *cluster
	budgets countedBudgets
	// input and pods are what the leader decides by, nil before they are needed.
	input *restartbudget.Input
	pods  map[string]watch.Key
	turns map[restartbudget.WorkloadID]*turns // of workloads that were asked about
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

// of returns what the strictest of the budgets that select a guarded pod says.
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

// compareAway has budgets that hold before slots and native ones, and of native ones the later first.
func compareAway(a, b *budget) int {
	return cmp.Or(cmp.Compare(a.whenAway, b.whenAway), cmp.Compare(b.nativeAfter, a.nativeAfter))
}

// slot returns the turn of a pod, or what holds if it has none.
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

// turnsOf gives turns to the guarded pods of a workload, in the order of the hashes of their UIDs, whichever template they have: as many share one as
// may be unavailable. Every second turn is empty, so that what restarts at the end of one is over before the next. All replicas must come to the same,
// also those of another release. There are none if nothing may be unavailable, or it is not known how many pods the workload is to have.
func (a *absence) turnsOf(id restartbudget.WorkloadID) *turns {
	if a.input == nil {
		in, pods := a.cluster.input(nil)
		a.input, a.pods = &in, pods
	}
	w := a.input.Workloads[id]
	if w == nil { // all its guarded pods are newer than a.input
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

// ranked returns the UIDs of the guarded pods of a workload that are not being deleted, in the order of their hashes.
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

// decidesIn returns how long the kubelet needs at most to restart a container of a pod since it is told that its probe fails. In pods of earlier releases it
// has the user's threshold.
func decidesIn(table mesh.ProbeTable) (longest time.Duration) {
	for _, p := range table {
		if p.Guarded {
			longest = max(longest, checksOf(p, max(p.FailureThreshold, mesh.GuardedFailureThreshold)))
		}
	}
	return longest
}

// checksOf returns how long so many checks take at most.
func checksOf(p mesh.Probe, n int32) time.Duration {
	seconds := int64(n) * (int64(p.PeriodSeconds) + int64(p.TimeoutSeconds))
	return time.Duration(min(seconds, int64(maxTurn/time.Second))) * time.Second
}
