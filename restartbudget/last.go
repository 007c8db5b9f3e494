package restartbudget

import "time"

// Last returns the grant that counts for a container: its last one. It returns false if it has none, or its pod is gone.
func (s *State) Last(key ContainerKey) (Grant, bool) {
	rec := s.last[key]
	if rec == nil {
		return Grant{}, false
	}
	return rec.Grant, true
}

// Add takes in a grant that another leader has written after Restore, and reports whether it is newer than the last one of its container, and so
// counts. Its agent may follow it, so that it is a reservation like any other, even where that is more than the workload has.
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

// restored returns the record of a grant of another leader.
func restored(now time.Time, g Grant) *record {
	rec := &record{Grant: g, at: g.Granted}
	if rec.inProgress() || rec.at.After(now) {
		rec.at = now
	}
	return rec
}
