package connlimit

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// freeBytes of each connection are not charged: a few requests.
	freeBytes = 8 << 10
	// burstTime is how much of the pace all sources together may use at once.
	burstTime = 250 * time.Millisecond
	// leastBurst is what each may have at once, in bytes, however many there are.
	leastBurst = 8 << 10
	// longestPause is how long a connection is not read at most.
	longestPause = time.Second
	// debtTime is for how long a source that has sent too much is known.
	debtTime = 10 * time.Second
)

// pace limits how fast connections are read: all together at most so many bytes a second, of which each source that has sent something
// just now gets the same part.
type pace struct {
	perSecond float64

	mu      sync.Mutex
	sources map[netip.Prefix]*allowance
	swept   time.Time
}

// allowance is how many bytes a source may still send at that time, less than none if it has sent too many.
type allowance struct {
	bytes float64
	at    time.Time
}

func newPace(bytesPerSecond int) *pace {
	return &pace{perSecond: float64(bytesPerSecond), sources: map[netip.Prefix]*allowance{}, swept: time.Now()}
}

// charge returns how long a source that has sent n bytes is not read.
func (p *pace) charge(source netip.Prefix, n int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(p.swept) >= time.Second {
		p.sweep(now)
	}
	a := p.sources[source]
	if a == nil {
		a = &allowance{at: now}
		p.sources[source] = a
		a.bytes = p.burst()
	}
	a.bytes = min(p.at(a, now), p.burst()) - float64(n)
	a.at = now
	if a.bytes >= 0 {
		return 0
	}
	return min(time.Duration(-a.bytes/p.share()*float64(time.Second)), longestPause)
}

// share is how many bytes a second each source may send.
func (p *pace) share() float64 { return p.perSecond / float64(len(p.sources)) }

// burst is how many bytes each source may send at once.
func (p *pace) burst() float64 { return max(p.share()*burstTime.Seconds(), leastBurst) }

// at is what a source may send now.
func (p *pace) at(a *allowance, now time.Time) float64 {
	return a.bytes + now.Sub(a.at).Seconds()*p.share()
}

// sweep forgets sources that owe nothing, or have sent nothing for long: they have no part of the pace.
func (p *pace) sweep(now time.Time) {
	p.swept = now
	for source, a := range p.sources {
		if p.at(a, now) >= 0 || now.Sub(a.at) >= debtTime {
			delete(p.sources, source)
		}
	}
}
