package connlimit

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// freeBytes of each connection are not charged. They suffice for a few requests.
	freeBytes = 8 << 10
	// burstTime is the time whose share of the pace all sources together may use at once.
	burstTime = 250 * time.Millisecond
	// leastBurst is the minimum burst of each source, in bytes, however many sources there are.
	leastBurst = 8 << 10
	// longestPause bounds a pause in reading a connection.
	longestPause = time.Second
	// debtTime is how long a source that has sent too much is remembered.
	debtTime = 10 * time.Second
)

// pace limits how fast connections are read: at most perSecond bytes per second in total, which the sources that have
// recently sent data share equally.
type pace struct {
	perSecond float64

	mu      sync.Mutex
	sources map[netip.Prefix]*allowance
	swept   time.Time
}

// allowance is how many bytes a source may still send. It is negative if the source has sent too many.
type allowance struct {
	bytes float64
	at    time.Time
}

func newPace(bytesPerSecond int) *pace {
	return &pace{perSecond: float64(bytesPerSecond), sources: map[netip.Prefix]*allowance{}, swept: time.Now()}
}

// charge returns how long to stop reading from a source that has sent n bytes.
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

// share is how many bytes per second each source may send.
func (p *pace) share() float64 { return p.perSecond / float64(len(p.sources)) }

// burst is how many bytes each source may send at once.
func (p *pace) burst() float64 { return max(p.share()*burstTime.Seconds(), leastBurst) }

// at returns how many bytes a source may send now.
func (p *pace) at(a *allowance, now time.Time) float64 {
	return a.bytes + now.Sub(a.at).Seconds()*p.share()
}

// sweep drops sources that owe nothing or have not sent for long, which then have no share of the pace.
func (p *pace) sweep(now time.Time) {
	p.swept = now
	for source, a := range p.sources {
		if p.at(a, now) >= 0 || now.Sub(a.at) >= debtTime {
			delete(p.sources, source)
		}
	}
}
