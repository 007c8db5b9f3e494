// Package restartbudget decides whether the container of a failing liveness probe may restart now.
//
// The package is pure: it has no clock, and each Input has the state of the cluster. State is what one leader
// remembers; it is not safe for concurrent use. Times are from the leader's clock, with the monotonic reading of
// time.Now, so that setting the clock has no effect.
package restartbudget

import (
	"slices"
	"time"
)

const (
	// InProgress is how long after the grant a restart is in progress if the pod does not become Ready again.
	InProgress = 10 * time.Minute
	// window is the period of the breaker and of all per-minute limits.
	window = time.Minute
	// CatchUp is how long after Restore a missing pod is not treated as deleted: the grant may be newer than the state
	// of pods that the new leader has read.
	CatchUp = time.Minute
)

// State has the grants, the unhelpful restarts and the state of the breaker.
type State struct {
	// last has the last grant of each container whose pod exists, or may exist.
	last map[ContainerKey]*record
	// recent has the grants of the last minute.
	recent []*record
	// served has the time of each namespace's last grant, if that is within the last hour.
	served map[string]time.Time
	// unhelpful counts consecutive unhelpful restarts.
	unhelpful map[templateKey]int
	breaker   breaker
	// forgetsFrom is the time from which missing pods are treated as deleted.
	forgetsFrom time.Time
}

// record is a grant with a time of this leader's clock.
type record struct {
	Grant
	// at is the time of the grant for limits: Granted, or later for another leader's grant.
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
	// Changed are the changed grants, ordered by time and ID, which the caller must write.
	Changed []Grant
	Breaker Breaker
}

// Decide decides on all requests of in, without changing it. A grant in the result already counts against the limits in
// s: if the caller fails to write it to the API, it must call Refund. The Result depends only on State, time and Input,
// but not on the order of the requests.
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
// writing it failed. It returns the grant, which the caller must write. It returns false if it has no effect: an
// observed restart is not undone.
func (s *State) Refund(now time.Time, id GrantID) (Grant, bool) {
	rec := s.last[id.ContainerKey]
	if rec == nil || rec.ID != id || rec.Outcome != Open {
		return Grant{}, false
	}
	rec.Outcome, rec.Ended = Refunded, now
	return rec.Grant, true
}

// Restarted records that a grant's container has restarted, or ended for good, although its restart count shows
// nothing: its container ID has changed, or its restartPolicy is Never. It returns the grant, which the caller must
// write, and false if the restart was known or the grant is unknown.
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

// Release allows restarts again for a workload whose restarts did not help. For later leaders, the caller also writes
// Released to the unhelpful grants of the workload. Results have that outcome from then on.
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
// differ, it treats a restart in progress as granted now. The API must keep unhelpful grants while pods have their
// template, and other grants for an hour. The breaker starts empty, since agents repeat their requests within a period
// of their probes.
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
