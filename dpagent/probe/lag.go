package probe

import (
	"errors"
	"sync"
	"time"
)

// ErrLate is the error of a check whose time was over while this process could not go on with it: nothing is known of the application.
var ErrLate = errors.New("the agent was too busy to check")

const (
	// lagTicks is how often the lag is measured within the timeout of a check. Most checks end before the first tick.
	lagTicks = 10
	// lagShare is the part of its timeout that a check may lose to the lag: one in lagShare.
	lagShare = 4
)

// lag measures for how long this process could not go on with a check, because other processes had the processors, or the
// requests of a flood were first. If a check then fails only because its time is over, that says nothing about the
// application.
type lag struct {
	interval time.Duration

	mu    sync.Mutex
	timer *time.Timer // nil after stop
	due   time.Time   // of the next tick
	lost  time.Duration
}

// watchLag measures until stop is called. A check without a timeout has no lag.
func watchLag(timeout time.Duration) *lag {
	l := &lag{interval: timeout / lagTicks}
	if l.interval <= 0 {
		return l
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.due = time.Now().Add(l.interval)
	l.timer = time.AfterFunc(l.interval, l.tick)
	return l
}

func (l *lag) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil {
		return
	}
	l.count(time.Now())
	l.timer.Reset(l.interval)
}

// count adds how late the tick is that was due. mu is held.
func (l *lag) count(now time.Time) {
	l.lost += max(0, now.Sub(l.due))
	l.due = now.Add(l.interval)
}

// stop ends the measurement, and returns the time that was lost.
func (l *lag) stop() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil {
		return 0
	}
	l.timer.Stop()
	l.timer = nil
	l.count(time.Now())
	return l.lost
}

// unlessLate returns r, or Errored if all that r says is that the time was over, and the agent has lost too much of it.
func (r result) unlessLate(took, timeout, lost time.Duration) result {
	timedOut := r.verdict == failure && r.status == 0 && took >= timeout
	if !timedOut || lost <= timeout/lagShare {
		return r
	}
	return result{verdict: errored, class: AgentFault, reason: ErrLate.Error() + ": " + r.reason}
}
