package session

import "time"

// latest keeps the newest report of one kind, and limits how often it is processed, so that an agent that reports too
// often causes no more work at other replicas.
type latest[M any] struct {
	taken  time.Time   // when the last report was processed
	newest M           // the waiting report
	due    *time.Timer // nil if no report waits
}

// add returns true if the caller must process the report now. Otherwise the report waits.
func (l *latest[M]) add(m M, every time.Duration) bool {
	wait := time.Until(l.taken.Add(every))
	if wait <= 0 {
		l.take() // drop the older report, which must not be processed later
		l.taken = time.Now()
		return true
	}
	l.newest = m
	if l.due == nil {
		l.due = time.NewTimer(wait)
	}
	return false
}

func (l *latest[M]) tick() <-chan time.Time {
	if l.due == nil {
		return nil
	}
	return l.due.C
}

// take returns the waiting report, and false without one.
func (l *latest[M]) take() (m M, waits bool) {
	if l.due == nil {
		return m, false
	}
	l.due.Stop()
	m, l.newest, l.due, l.taken = l.newest, m, nil, time.Now()
	return m, true
}
