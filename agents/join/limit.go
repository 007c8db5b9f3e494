package join

import (
	"sync"

	"golang.org/x/time/rate"
)

// maxCallers bounds the memory of a limiter.
const maxCallers = 10_000

// limiter limits the rate of each caller.
type limiter struct {
	every rate.Limit
	burst int

	mu      sync.Mutex
	callers map[string]*rate.Limiter
}

func newLimiter(every rate.Limit, burst int) *limiter {
	return &limiter{every: every, burst: burst, callers: map[string]*rate.Limiter{}}
}

// allow reports whether the caller may call now. Beyond maxCallers, it rejects new callers.
func (l *limiter) allow(caller string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.callers[caller]
	if one == nil {
		if len(l.callers) >= maxCallers {
			l.forgetIdle()
		}
		if len(l.callers) >= maxCallers {
			return false
		}
		one = rate.NewLimiter(l.every, l.burst)
		l.callers[caller] = one
	}
	return one.Allow()
}

// forgetIdle drops callers with a full burst, whose entry has no effect. The caller holds mu.
func (l *limiter) forgetIdle() {
	for caller, one := range l.callers {
		if one.Tokens() >= float64(l.burst) {
			delete(l.callers, caller)
		}
	}
}

// sweep drops idle callers.
func (l *limiter) sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetIdle()
}
