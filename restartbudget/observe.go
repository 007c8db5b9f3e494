package restartbudget

import (
	"slices"
	"time"
)

// observe updates the grants from the input, and returns the changed ones.
func (s *State) observe(now time.Time, in Input, candidates []candidate) []Grant {
	var changed, judged []*record
	before := map[*record]Grant{}
	for key, rec := range s.last {
		_, pod := in.find(rec.Workload, key.PodUID)
		if pod == nil {
			if !s.CatchingUp(now) {
				delete(s.last, key)
			}
			continue
		}
		before[rec] = rec.Grant
		rec.proceed(now, pod, in.Settings.Mode)
		if rec.helped(pod) && !s.outdated(now, rec, pod) {
			rec.Outcome, rec.Judged = Helped, now
			judged = append(judged, rec)
		}
	}
	for i := range candidates {
		c := &candidates[i]
		if rec := s.last[c.ContainerKey]; rec != nil && rec.failedAgain(now, c) && !s.outdated(now, rec, c.pod) {
			rec.Outcome, rec.Judged = Unhelpful, now
			judged = append(judged, rec)
		}
	}
	for rec, was := range before {
		_, pod := in.find(rec.Workload, rec.ID.PodUID)
		rec.finish(now, pod, in.Settings.Mode)
		if rec.Grant != was {
			changed = append(changed, rec)
		}
	}
	s.recent = slices.DeleteFunc(s.recent, func(rec *record) bool {
		return rec.Outcome == Refunded || now.Sub(rec.at) >= window
	})
	for _, g := range ordered(judged) {
		s.count(g)
	}
	if !s.CatchingUp(now) {
		s.forgetTemplates(in)
	}
	return ordered(append(changed, judged...))
}

// CatchingUp reports whether a new leader may not have seen all pods yet, see CatchUp: a missing pod may exist.
func (s *State) CatchingUp(now time.Time) bool { return now.Before(s.forgetsFrom) }

// outdated reports whether a new leader has no report of the pod from after its restart. An agent that was suspended
// still reports an older state. Clocks of leaders may differ.
func (s *State) outdated(now time.Time, rec *record, pod *Pod) bool {
	return s.CatchingUp(now) && !pod.Reported.IsZero() && pod.Reported.Before(rec.Granted) && !rec.Granted.After(now)
}

// ordered returns the grants of records, sorted and without duplicates.
func ordered(records []*record) []Grant {
	slices.SortFunc(records, func(a, b *record) int { return compareGrants(a.Grant, b.Grant) })
	records = slices.Compact(records)
	grants := make([]Grant, len(records))
	for i, rec := range records {
		grants[i] = rec.Grant
	}
	return grants
}

// proceed updates the grant if the container has restarted, or can no longer restart.
func (rec *record) proceed(now time.Time, pod *Pod, mode Mode) {
	if rec.Outcome != Open {
		return
	}
	c := pod.find(rec.ID.Name)
	switch {
	case c != nil && c.Restarts > rec.ID.Restarts:
		rec.Outcome, rec.Spent = Spent, now
	case rec.over(now, mode):
		rec.Outcome = Refunded
	}
}

// finish ends a restart when the pod is Ready, and the probe has shown whether the restart helped, if that can be seen.
// Without the second condition, a probe with a wrong path would make the next pods restart before the first ones fail
// again.
func (rec *record) finish(now time.Time, pod *Pod, mode Mode) {
	if !rec.inProgress() {
		return
	}
	c := pod.find(rec.ID.Name)
	awaited := rec.Outcome == Open || rec.Outcome == Spent && c != nil && c.Restarts > rec.ID.Restarts
	if rec.over(now, mode) || pod.Ready && !awaited {
		// The condition is the new container's, since the kubelet writes both at once.
		rec.Ended = now
	}
}

// over reports whether a restart has timed out, or was granted in a dry run that has ended.
func (rec *record) over(now time.Time, mode Mode) bool {
	return now.Sub(rec.at) >= InProgress || rec.DryRun && mode != DryRun
}

// helped reports whether the probe has passed after the restart.
func (rec *record) helped(pod *Pod) bool {
	c := pod.find(rec.ID.Name)
	return c != nil && rec.Outcome == Spent && c.Passed > rec.ID.Restarts
}

// failedAgain reports whether the candidate's failure shows that the restart did not help.
func (rec *record) failedAgain(now time.Time, c *candidate) bool {
	return rec.Outcome == Spent && c.current() && c.Restarts > rec.ID.Restarts && !rec.isStarting(now, c)
}

// isStarting reports whether the candidate may still be starting after the restart: since then, its probe has not
// failed for as long as the kubelet allows. Failures before the agent noticed the restart are ignored.
func (rec *record) isStarting(now time.Time, c *candidate) bool {
	since := c.Since
	if rec.Spent.After(since) && !rec.Spent.After(now) { // clocks of leaders may differ
		since = rec.Spent
	}
	return now.Sub(since) < c.container.Patience
}

// inProgress reports whether the grant counts against its workload's budget.
func (rec *record) inProgress() bool { return rec != nil && rec.Ended.IsZero() }
