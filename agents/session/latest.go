package session

import "time"

// latest keeps the newest report of one kind until it may be taken: not sooner after the last one than agents report. So others have no more to do
// for one that reports more often.
type latest[M any] struct {
	taken  time.Time   // when the last one was
	newest M           // while one waits
	due    *time.Timer // nil if none waits
}

// add returns true if the report is to be taken now. Else it waits.
func (l *latest[M]) add(m M, every time.Duration) bool {
	wait := time.Until(l.taken.Add(every))
	if wait <= 0 {
		l.take() // what waits is older, and must not come after it
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

// take returns what waits, false if that is nothing.
func (l *latest[M]) take() (m M, waits bool) {
	if l.due == nil {
		return m, false
	}
	l.due.Stop()
	m, l.newest, l.due, l.taken = l.newest, m, nil, time.Now()
	return m, true
}
