// Package held decides whether the kubelet is told that a guarded liveness probe fails. It is told while the control plane grants a restart of the
// container; otherwise the failure is held back.
package held

import (
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// Options of a Liveness. All are required.
type Options struct {
	// Keep keeps what the control plane has said for the agent after this one, which gives it to Told. It returns at once.
	Keep   func(*agentv1.Restarts)
	Logger *slog.Logger
	// Registerer of the metrics.
	Registerer prometheus.Registerer
}

// Liveness has the state of the guarded liveness probes of a pod. It is safe for concurrent use. All its times are durations on the monotonic clock.
type Liveness struct {
	o      Options
	wake   chan struct{} // there is something to report
	jitter float64       // of WhenAway.after, from 0 to 1

	keeping sync.Mutex // of what is kept, so that the newest is

	mu         sync.Mutex
	told       *agentv1.Restarts // nil before the first
	native     bool              // the control plane is too old to grant
	epoch      int64             // the highest of a grant
	used       bool              // a grant is used up, which is to be kept
	lost       time.Time         // since when there is no session, zero while there is one
	containers map[string]*container
}

// container has what is known of the liveness probe of one.
type container struct {
	failing time.Time // since when, zero if it does not
	passing bool
	reason  string
	held    bool   // the last failure was kept from the kubelet
	grant   string // the one in use
	left    int    // failures that the kubelet is still told by it; with 0 it restarts the container, until the next check
	until   time.Time
	spent   string // the last one that was in use and is not any more
	unused  string // spent, if it was not used up
}

// New returns a Liveness of containers that pass. Until there is a session, failures are held back.
func New(o Options) *Liveness {
	l := &Liveness{
		o: o, wake: make(chan struct{}, 1), containers: map[string]*container{}, lost: time.Now(),
		jitter: rand.Float64(), //nolint:gosec // it spreads load, it is no secret
	}
	o.Registerer.MustRegister(heldMetric{l})
	return l
}

// Passed notes that the probe of a container has passed.
func (l *Liveness) Passed(p mesh.Probe) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.container(p)
	if c.passing {
		return
	}
	if c.grant != "" {
		c.end(c.left > 0)
	}
	c.failing, c.reason, c.passing, c.held = time.Time{}, "", true, false
	l.giveBack(p.Container, c)
	l.report()
}

// giveBack gives back a grant of a container that passes, before the kubelet has been told of any failure by it. It needs mu.
func (l *Liveness) giveBack(name string, c *container) {
	if g := l.grantFor(name); c.passing && c.grant == "" && g != nil && g.GetName() != c.spent {
		c.spent, c.unused = g.GetName(), g.GetName()
		l.report()
	}
}

// container needs mu.
func (l *Liveness) container(p mesh.Probe) *container { return l.containerNamed(p.Container) }

// containerNamed needs mu.
func (l *Liveness) containerNamed(name string) *container {
	c := l.containers[name]
	if c == nil {
		c = &container{}
		l.containers[name] = c
	}
	return c
}

// Failed notes that the probe of a container has failed, and returns whether that is held back from the kubelet.
func (l *Liveness) Failed(p mesh.Probe, reason string) (held bool) {
	defer l.keepUsed() // without mu
	l.mu.Lock()
	defer l.mu.Unlock()
	c, now := l.container(p), time.Now()
	if c.failing.IsZero() {
		c.failing, c.passing = now, false
		l.report()
	}
	c.reason = cut.Text(reason, agentv1.MaxReason)
	if held = l.holds(c, p, now); held != c.held {
		c.held = held
		l.report()
	}
	return held
}

// holds returns whether a failure is held back. mu is held.
func (l *Liveness) holds(c *container, p mesh.Probe, now time.Time) bool {
	switch {
	case l.native || l.told.GetMode() == agentv1.Restarts_NATIVE:
		if c.grant != "" { // the kubelet does not need it
			c.end(c.left > 0)
			l.report()
		}
		return false
	case l.told.GetMode() == agentv1.Restarts_SUSPENDED:
		return true
	}
	return !l.useGrant(c, p, now) && !l.ownTurn(now)
}

// useGrant returns whether the kubelet is told of one failure of a container by a grant. mu is held.
func (l *Liveness) useGrant(c *container, p mesh.Probe, now time.Time) bool {
	if c.grant != "" && (c.left == 0 || !now.Before(c.until) || !l.isOpen(c.grant)) {
		if c.left == 0 { // this check is of the container that has restarted, whose failure is another one
			c.failing = now
		}
		c.end(c.left > 0)
		l.report()
	}
	if c.grant == "" {
		g := l.grantFor(p.Container)
		if g == nil || g.GetName() == c.spent {
			return false
		}
		c.grant, c.unused, c.left = g.GetName(), "", int(p.FailureThreshold)
		c.until = now.Add(grantLife(p))
		l.report()
	}
	c.left--
	l.used = l.used || c.left == 0
	return true
}

// end stops using a grant.
func (c *container) end(unused bool) {
	c.spent, c.unused = c.grant, ""
	if unused {
		c.unused = c.grant
	}
	c.grant = ""
}

// maxGrantLife bounds what a pod may have written.
const maxGrantLife = 24 * time.Hour

// grantLife is how long a grant is used: as long as the kubelet may need to ask failureThreshold times, and once more.
func grantLife(p mesh.Probe) time.Duration {
	seconds := (int64(p.FailureThreshold) + 1) * (int64(p.PeriodSeconds) + int64(p.TimeoutSeconds))
	return time.Duration(min(seconds, int64(maxGrantLife/time.Second))) * time.Second
}

// grantFor returns nil if there is none. mu is held.
func (l *Liveness) grantFor(container string) *agentv1.RestartGrant {
	i := slices.IndexFunc(l.told.GetGrants(), func(g *agentv1.RestartGrant) bool { return g.GetContainer() == container && g.GetEpoch() >= l.epoch })
	if i < 0 {
		return nil
	}
	return l.told.GetGrants()[i]
}

// ownTurn reports whether the kubelet is told the truth since there is no control plane. mu is held.
func (l *Liveness) ownTurn(now time.Time) bool {
	away := l.told.GetWhenAway()
	if l.lost.IsZero() || away == nil {
		return false
	}
	after, since := away.GetAfter().AsDuration(), now.Sub(l.lost)
	switch away.GetPolicy() {
	case agentv1.WhenAway_NATIVE:
		return since >= after+time.Duration(l.jitter*float64(after)/2)
	case agentv1.WhenAway_SLOTS:
		turn := away.GetTurnTime().AsDuration()
		if since < after || away.GetTurns() == 0 || turn <= 0 {
			return false
		}
		return uint32((since-after)/turn)%away.GetTurns() == away.GetTurn()
	}
	return false
}

// Told takes what the control plane says. nil is one that is too old to say it: then the kubelet is told the truth.
func (l *Liveness) Told(m *agentv1.Restarts) {
	l.mu.Lock()
	l.native = m == nil
	newest := l.epoch
	if !l.native {
		l.told = m
		for _, g := range m.GetGrants() {
			l.epoch = max(l.epoch, g.GetEpoch())
		}
		l.takeUsed(m.GetGrants())
		for name, c := range l.containers {
			l.giveBack(name, c)
		}
	}
	l.mu.Unlock()
	if m == nil {
		return
	}
	for _, g := range m.GetGrants() {
		if g.GetEpoch() < newest {
			l.o.Logger.Warn("grant of an earlier leader not used", "grant", g.GetName(), "container", g.GetContainer(), "epoch", g.GetEpoch(), "newest", newest)
		}
	}
	l.keep()
}

// Connected tells whether there is a session.
func (l *Liveness) Connected(is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case is:
		l.lost = time.Time{}
		l.report() // it may be with another control plane
	case l.lost.IsZero():
		l.lost = time.Now()
	}
}

// report needs mu.
func (l *Liveness) report() {
	select {
	case l.wake <- struct{}{}:
	default: // it will be reported anyway
	}
}

// Due receives when there is something to report.
func (l *Liveness) Due() <-chan struct{} { return l.wake }

// Report returns what fails now.
func (l *Liveness) Report() *agentv1.Liveness {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &agentv1.Liveness{}
	for _, name := range slices.Sorted(maps.Keys(l.containers)) {
		c := l.containers[name]
		if c.unused != "" && len(m.GetUnused()) < agentv1.MaxReported {
			m.Unused = append(m.Unused, c.unused)
		}
		switch {
		case c.passing && len(m.GetPassing()) < agentv1.MaxReported:
			m.Passing = append(m.Passing, name)
		case !c.failing.IsZero() && len(m.GetHeld()) < agentv1.MaxReported:
			m.Held = append(m.Held, &agentv1.HeldLiveness{
				Container: name, Failing: durationpb.New(time.Since(c.failing)), Reason: c.reason, Grant: c.grant, Told: !c.held && c.grant == "",
			})
		}
	}
	return m
}
