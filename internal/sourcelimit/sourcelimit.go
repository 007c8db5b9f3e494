// Package sourcelimit limits how often the callers of a server do something, each source for itself.
package sourcelimit

import (
	"hash/maphash"
	"net/netip"

	"golang.org/x/time/rate"
)

// limiters is how many limiters all sources share, so that their number does not matter for memory. Which of them share one cannot be told from
// outside.
const limiters = 1024

// Limiter limits the rate of each source. Its methods may be called concurrently.
type Limiter struct {
	seed maphash.Seed
	all  [limiters]*rate.Limiter
}

// New returns a Limiter which allows a burst, and then so many per second.
func New(perSecond rate.Limit, burst int) *Limiter {
	l := &Limiter{seed: maphash.MakeSeed()}
	for i := range l.all {
		l.all[i] = rate.NewLimiter(perSecond, burst)
	}
	return l
}

// Allow reports whether a source, which connlimit.Source returns, may do it once more now.
func (l *Limiter) Allow(source netip.Prefix) bool {
	return l.all[maphash.Comparable(l.seed, source)%limiters].Allow()
}
