// Package restartbudget decides whether the container of a failing liveness probe may restart now.
//
// It is pure: it has no clock, and what it knows of the cluster is in each Input. State is what it remembers, for one leader; it is not safe for
// concurrent use. Times are those of the leader's clock; with the monotonic reading of time.Now a clock that is set makes no difference.
package restartbudget

import (
	"slices"
	"time"
)

const (
	// InProgress is how long a restart counts as in progress if the pod does not become Ready again, from the grant on.
	InProgress = 10 * time.Minute
	// window is that of the breaker and of all limits per minute.
	window = time.Minute
	// CatchUp is how long after Restore a pod that is missing does not count as gone: its grant may be newer than what the new leader has seen of pods.
	CatchUp = time.Minute
)

// State remembers grants, restarts that did not help, and what the breaker has seen.
type State struct {
	// last grant of each container whose pod exists, or may.
	last map[ContainerKey]*record
	// recent grants, of the last minute.
	recent []*record
	// served is when a namespace was granted something last, of the last hour.
	served map[string]time.Time
	// unhelpful restarts in a row.
	unhelpful map[templateKey]int
	breaker   breaker
	// forgetsFrom is when pods that are missing are gone.
	forgetsFrom time.Time
}

// record is a grant as its leader counts it.
type record struct {
	Grant
	// at is when the grant counts as made: Granted, or later if another leader made it.
	at time.Time
}

// New returns a State without grants.
func New() *State {
	return &State{last: map[ContainerKey]*record{}, served: map[string]time.Time{}, unhelpful: map[templateKey]int{}, breaker: breaker{held: map[ContainerKey]sighting{}}}
}

// Result of Decide.
type Result struct {
	// Decisions on all requests, oldest request first.
	Decisions []Decision
	// Changed are the grants that have gone on, for the caller to write, ordered by time and ID.
	Changed []Grant
	Breaker Breaker
}

// Decide decides on all requests of in, which is not modified. A grant in the result is already a reservation in s: if the caller cannot write it to
// the API, it must Refund it. The same State, time and Input, with requests in any order, give the same Result.
func (s *State) Decide(now time.Time, in Input) Result {
	candidates := in.candidates()
	r := Result{Changed: s.observe(now, in, candidates)}
	r.Breaker = s.breaker.observe(now, in, candidates)
	round := s.newRound(now, in, r.Breaker)
	r.Decisions = make([]Decision, len(candidates))
	s.forgetServed(now)
	newTurns(candidates, round.byNamespace, s.served).decide(func(i int) { r.Decisions[i] = round.decide(&candidates[i]) })
	return r
}

// Refund ends a grant that was not used: the check has passed before the container restarted, the agent's time for it is over, or the grant could
// not be written. It returns the grant for the caller to write, false if there is nothing to refund: a restart that was seen is not undone.
func (s *State) Refund(now time.Time, id GrantID) (Grant, bool) {
	rec := s.last[id.ContainerKey]
	if rec == nil || rec.ID != id || rec.Outcome != Open {
		return Grant{}, false
	}
	rec.Outcome, rec.Ended = Refunded, now
	return rec.Grant, true
}

// Restarted says that the container of a grant has restarted, or ended for good, where the restart count does not show it: its container ID has
// changed, or its restartPolicy is Never. It returns the grant for the caller to write, false if the restart is known or the grant is not.
func (s *State) Restarted(now time.Time, id GrantID) (Grant, bool) {
	rec := s.last[id.ContainerKey]
	if rec == nil || rec.ID != id || rec.Outcome != Open {
		return Grant{}, false
	}
	rec.Outcome, rec.Spent = Spent, now
	return rec.Grant, true
}

// InProgress returns how many restarts are in progress, by UID of the pod. Pods without any are not in it.
func (s *State) InProgress() map[string]int {
	all := map[string]int{}
	for key, rec := range s.last {
		if rec.inProgress() {
			all[key.PodUID]++
		}
	}
	return all
}

// Release lets a workload restart again whose restarts did not help. For a new leader to know it, the caller also writes Released to the unhelpful
// grants of the workload, which they are from then on in results, too.
func (s *State) Release(workload WorkloadID) {
	for key := range s.unhelpful {
		if key.workload == workload {
			delete(s.unhelpful, key)
		}
	}
	for _, rec := range s.last {
		if rec.Workload == workload && rec.Outcome == Unhelpful {
			rec.Outcome = Released
		}
	}
}

// Restore returns the State of a new leader from all grants in the API, whatever their order. Clocks of leaders may differ, and so a restart that
// is in progress counts as granted now. The unhelpful grants of a template must be among them as long as pods have it; all others are needed for
// an hour. What the breaker has seen is not known: agents ask again within a period of their probes.
func Restore(now time.Time, grants []Grant) *State {
	s := New()
	s.forgetsFrom = now.Add(CatchUp)
	grants = slices.Clone(grants)
	slices.SortFunc(grants, compareGrants)
	for _, g := range grants {
		rec := restored(now, g)
		if last := s.last[g.ID.ContainerKey]; last == nil || last.ID.Before(g.ID) {
			s.last[g.ID.ContainerKey] = rec
		}
		s.recent = append(s.recent, rec)
		s.serve(rec)
	}
	slices.SortStableFunc(grants, func(a, b Grant) int { return a.Judged.Compare(b.Judged) })
	for _, g := range grants {
		s.count(g)
	}
	return s
}
