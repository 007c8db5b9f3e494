package restartbudget

import "time"

// Last returns the last grant of a container, which is the one that counts. It returns false without one, or if the pod
// was deleted.
func (s *State) Last(key ContainerKey) (Grant, bool) {
	rec := s.last[key]
	if rec == nil {
		return Grant{}, false
	}
	return rec.Grant, true
}

// Add adds a grant that another leader wrote after Restore. It reports whether the grant counts, because it is newer
// than the container's last one. Its agent may use it, so it counts against the budget even if the budget is exceeded.
func (s *State) Add(now time.Time, g Grant) bool {
	if last := s.last[g.ID.ContainerKey]; last != nil && !last.ID.Before(g.ID) {
		return false
	}
	rec := restored(now, g)
	s.last[g.ID.ContainerKey] = rec
	s.recent = append(s.recent, rec)
	s.serve(rec)
	return true
}

// Adopt takes over how another leader judged a restart, in place of what this leader knew of the grant.
func (s *State) Adopt(known, judged Grant) {
	if key := (templateKey{known.Workload, known.Template}); known.Outcome == Unhelpful && s.unhelpful[key] > 0 {
		s.unhelpful[key]--
	}
	s.count(judged)
	if rec := s.last[judged.ID.ContainerKey]; rec != nil && rec.ID == judged.ID {
		rec.Outcome, rec.Spent, rec.Judged = judged.Outcome, judged.Spent, judged.Judged
	}
}

// restored returns the record for another leader's grant.
func restored(now time.Time, g Grant) *record {
	rec := &record{Grant: g, at: g.Granted}
	if rec.inProgress() || rec.at.After(now) {
		rec.at = now
	}
	return rec
}
