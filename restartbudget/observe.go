package restartbudget

import (
	"slices"
	"time"
)

// observe takes from the input how grants went on, and returns those that have.
func (s *State) observe(now time.Time, in Input, candidates []candidate) []Grant {
	var changed, judged []*record
	for key, rec := range s.last {
		_, pod := in.find(rec.Workload, key.PodUID)
		if pod == nil {
			delete(s.last, key)
			continue
		}
		if rec.proceed(now, pod, in.Settings.Mode) {
			changed = append(changed, rec)
		}
		if c := pod.find(key.Name); c != nil && rec.Outcome == Spent && c.Passed > rec.ID.Restarts {
			rec.Outcome, rec.Judged = Helped, now
			judged = append(judged, rec)
		}
	}
	for i := range candidates {
		c := &candidates[i]
		if rec := s.last[c.ContainerKey]; rec != nil && rec.Outcome == Spent && c.current() && c.Restarts > rec.ID.Restarts {
			rec.Outcome, rec.Judged = Unhelpful, now
			judged = append(judged, rec)
		}
	}
	s.recent = slices.DeleteFunc(s.recent, func(rec *record) bool {
		return rec.Outcome == Refunded || now.Sub(rec.at) >= window
	})
	for _, g := range ordered(judged) {
		s.count(g)
	}
	s.forgetTemplates(in)
	return ordered(append(changed, judged...))
}

// ordered returns the grants of records without duplicates.
func ordered(records []*record) []Grant {
	slices.SortFunc(records, func(a, b *record) int { return compareGrants(a.Grant, b.Grant) })
	records = slices.Compact(records)
	grants := make([]Grant, len(records))
	for i, rec := range records {
		grants[i] = rec.Grant
	}
	return grants
}

// proceed takes from the pod whether the container has restarted and whether that is over, and reports whether one of them is new.
func (rec *record) proceed(now time.Time, pod *Pod, mode Mode) bool {
	before := rec.Grant
	over := now.Sub(rec.at) >= InProgress || rec.DryRun && mode != DryRun // a simulated restart ends with the simulation
	if rec.Outcome == Open {
		c := pod.find(rec.ID.Name)
		switch {
		case c != nil && c.Restarts > rec.ID.Restarts:
			rec.Outcome, rec.Spent = Spent, now
		case over:
			rec.Outcome = Refunded
		}
	}
	if rec.inProgress() && (over || rec.Outcome != Open && pod.Ready) {
		// After the restart the condition is that of the new container: the kubelet writes both at once.
		rec.Ended = now
	}
	return rec.Grant != before
}

// inProgress reports whether the grant takes a place in its workload's budget.
func (rec *record) inProgress() bool { return rec != nil && rec.Ended.IsZero() }
