// Package sourcelimit limits the rate of an action by callers of a server, for each source separately.
package sourcelimit

import (
	"hash/maphash"
	"net/netip"

	"golang.org/x/time/rate"
)

// limiters is how many limiters all sources share, so that memory does not depend on the number of sources. Outsiders
// cannot find out which sources share a limiter.
const limiters = 1024

// Limiter limits the rate of each source. Its methods may be called concurrently.
type Limiter struct {
	seed maphash.Seed
	all  [limiters]*rate.Limiter
}

// New returns a Limiter that allows a burst, and then perSecond actions per second.
func New(perSecond rate.Limit, burst int) *Limiter {
	l := &Limiter{seed: maphash.MakeSeed()}
	for i := range l.all {
		l.all[i] = rate.NewLimiter(perSecond, burst)
	}
	return l
}

// Allow reports whether a source, from connlimit.Source, may act now.
func (l *Limiter) Allow(source netip.Prefix) bool {
	return l.all[maphash.Comparable(l.seed, source)%limiters].Allow()
}
