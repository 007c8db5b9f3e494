package probe

import (
	"errors"
	"sync"
	"time"
)

// ErrLate is the error of a check that timed out because this process could not run: nothing is known about the
// application.
var ErrLate = errors.New("the agent was too busy to check")

const (
	// lagTicks is how often the lag is measured within the timeout of a check. Most checks end before the first tick.
	lagTicks = 10
	// lagShare limits the lag of a check to a share of its timeout: one in lagShare.
	lagShare = 4
)

// lag measures how long this process could not continue a check, because other processes used the processors, or a
// flood of requests came first. If such a check times out, that says nothing about the application.
type lag struct {
	interval time.Duration

	mu    sync.Mutex
	timer *time.Timer // nil after stop
	due   time.Time   // time of the next tick
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

// count adds the delay of the tick that was due. The caller holds mu.
func (l *lag) count(now time.Time) {
	l.lost += max(0, now.Sub(l.due))
	l.due = now.Add(l.interval)
}

// stop ends the measurement, and returns the lost time.
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

// unlessLate returns r, or Errored if r is a timeout and the check lost more than its share of the time to the lag.
func (r result) unlessLate(took, timeout, lost time.Duration) result {
	timedOut := r.verdict == failure && r.status == 0 && took >= timeout
	if !timedOut || lost <= timeout/lagShare {
		return r
	}
	return result{verdict: errored, class: AgentFault, reason: ErrLate.Error() + ": " + r.reason}
}
