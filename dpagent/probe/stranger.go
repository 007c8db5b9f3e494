package probe

import "time"

// A pod has one kubelet, which probes regularly. Other callers may have the user agent of another version, whose rules
// may give another verdict. Their results do not count while they probe only now and then, and the kubelet regularly.

// kubeletPeriod is the kubelet's default period. It is also used for a probe with a shorter period, or with none in the
// table.
const kubeletPeriod = 10 * time.Second

// regularity is the time span in which a lane was probed without a gap of more than two periods.
type regularity struct{ since, until time.Time }

// ask records a check.
func (r *regularity) ask(now time.Time, period time.Duration) {
	if r.until.IsZero() || now.Sub(r.until) > 2*period {
		r.since = now
	}
	r.until = now
}

// holds reports whether a lane has been probed regularly for three periods.
func (r *regularity) holds(now time.Time, period time.Duration) bool {
	return !r.until.IsZero() && now.Sub(r.until) <= 2*period && r.until.Sub(r.since) >= 3*period
}

// counts records a check, and reports whether its result counts.
func (e *entry) counts(by rules) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	period := max(time.Duration(e.probe.PeriodSeconds)*time.Second, kubeletPeriod)
	now, own := time.Now(), e.lane(by)
	own.asked.ask(now, period)
	if own.asked.holds(now, period) {
		return true
	}
	for _, other := range e.lanes {
		if other != own && other.asked.holds(now, period) {
			return false
		}
	}
	return true
}
