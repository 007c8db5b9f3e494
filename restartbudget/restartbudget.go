// Package restartbudget decides whether the container of a failing liveness probe may restart now.
//
// The package is pure: it has no clock, and each Input has the state of the cluster. State is the memory of one leader;
// it is not safe for concurrent use. Times are from the leader's clock. They have the monotonic reading of time.Now, so
// that setting the clock has no effect.
package restartbudget

import (
	"slices"
	"time"
)

const (
	// InProgress is how long after the grant a restart counts as in progress if the pod does not become Ready again.
	InProgress = 10 * time.Minute
	// window of the breaker and of all per-minute limits.
	window = time.Minute
	// CatchUp is how long after Restore a missing pod does not count as deleted: its grant may be newer than the new
	// leader's state of pods.
	CatchUp = time.Minute
)

// State has the grants, the unhelpful restarts and the state of the breaker.
type State struct {
	// last has the last grant of each container whose pod exists, or may exist.
	last map[ContainerKey]*record
	// recent has the grants of the last minute.
	recent []*record
	// served has the last grant of each namespace within the last hour.
	served map[string]time.Time
	// unhelpful counts consecutive unhelpful restarts.
	unhelpful map[templateKey]int
	breaker   breaker
	// forgetsFrom is the time from which missing pods count as deleted.
	forgetsFrom time.Time
}

// record is a grant with its leader's time.
type record struct {
	Grant
	// at is when the grant counts as made: Granted, or later for another leader's grant.
	at time.Time
}

// New returns a State without grants.
func New() *State {
	return &State{last: map[ContainerKey]*record{}, served: map[string]time.Time{}, unhelpful: map[templateKey]int{},
		breaker: breaker{held: map[ContainerKey]sighting{}}}
}

// Result of Decide.
type Result struct {
	// Decisions on all requests, oldest request first.
	Decisions []Decision
	// Changed are the changed grants, for the caller to write, ordered by time and ID.
	Changed []Grant
	Breaker Breaker
}

// Decide decides on all requests of in, without changing it. A grant in the result already counts in s: if the caller
// fails to write it to the API, it must call Refund. Equal State, time and Input give an equal Result, whatever the
// order of the requests.
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

// Refund ends an unused grant: the probe passed before the container restarted, the grant expired at the agent, or
// writing it failed. It returns the grant for the caller to write, and false without an effect: an observed restart is
// not undone.
func (s *State) Refund(now time.Time, id GrantID) (Grant, bool) {
	rec := s.last[id.ContainerKey]
	if rec == nil || rec.ID != id || rec.Outcome != Open {
		return Grant{}, false
	}
	rec.Outcome, rec.Ended = Refunded, now
	return rec.Grant, true
}

// Restarted records a restart, or final end, of a grant's container that the restart count does not show: its container
// ID has changed, or its restartPolicy is Never. It returns the grant for the caller to write, and false if the restart
// was known or the grant is unknown.
func (s *State) Restarted(now time.Time, id GrantID) (Grant, bool) {
	rec := s.last[id.ContainerKey]
	if rec == nil || rec.ID != id || rec.Outcome != Open {
		return Grant{}, false
	}
	rec.Outcome, rec.Spent = Spent, now
	return rec.Grant, true
}

// InProgress returns the number of restarts in progress by pod UID, without zeros.
func (s *State) InProgress() map[string]int {
	all := map[string]int{}
	for key, rec := range s.last {
		if rec.inProgress() {
			all[key.PodUID]++
		}
	}
	return all
}

// Release lets a workload restart again whose restarts did not help. For later leaders, the caller also writes Released
// to the unhelpful grants of the workload. Results have that outcome from then on.
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

// Restore returns the State of a new leader from all grants in the API, in any order. Since clocks of leaders may
// differ, a restart in progress counts as granted now. Unhelpful grants must be kept while pods have their template,
// other grants for an hour. The breaker starts empty: agents repeat their requests within a period of their probes.
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
