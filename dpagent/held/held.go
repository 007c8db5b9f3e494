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
	"github.com/sonde-mesh/sonde/internal/run"
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
	wake   run.Signal // there is something to report
	jitter float64    // of WhenAway.after, from 0 to 1

	keeping sync.Mutex // of what is kept, so that the newest is

	mu         sync.Mutex
	told       *agentv1.Restarts // nil before the first
	native     bool              // the control plane is too old to grant
	epoch      int64             // the highest of a grant
	used       bool              // a grant is used up, or may be, which is to be kept
	lost       time.Time         // since when there is no session, zero while there is one
	containers map[string]*container
}

// container has what is known of the liveness probe of one.
type container struct {
	failing  time.Time // since when, zero if it does not
	passing  bool
	reason   string
	failures int       // in a row, at most the user's threshold
	counted  time.Time // when the last of them was
	cleared  bool      // the kubelet has begun to count since this agent has started: it was told of a check that has passed, or has restarted the container
	told     int       // failures that the kubelet was told of since it has begun to count: with toldToRestart it restarts the container, until the next check
	held     bool      // the last failure was held back
	grant    string    // the one in use
	until    time.Time
	spent    string // the last one that was in use and is not any more
	unused   string // spent, if it was not used up
}

// toldToRestart is how many failures in a row the kubelet is told of until it restarts the container.
const toldToRestart = mesh.GuardedFailureThreshold

// New returns a Liveness of containers that pass. Until there is a session, failures are held back.
func New(o Options) *Liveness {
	l := &Liveness{
		o: o, wake: run.NewSignal(), containers: map[string]*container{}, lost: time.Now(),
		jitter: rand.Float64(), //nolint:gosec // it spreads load, it is no secret
	}
	o.Registerer.MustRegister(heldMetric{l})
	return l
}

// Passed notes that the probe of a container has passed.
func (l *Liveness) Passed(p mesh.Probe) {
	defer l.keepUsed() // without mu
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.container(p)
	if c.passing {
		return
	}
	if c.grant != "" {
		l.used = l.used || c.told > 0 // with less than toldToRestart it may have restarted: the kubelet counts an end of the sidecar, too
		c.end()
	}
	c.failing, c.reason, c.passing, c.held = time.Time{}, "", true, false
	c.failures, c.told, c.cleared = 0, 0, true
	l.giveBack(p.Container, c)
	l.wake.Set()
}

// giveBack gives back a grant of a container that passes, before the kubelet has been told of any failure by it. It needs mu.
func (l *Liveness) giveBack(name string, c *container) {
	if g := l.grantFor(name); c.passing && c.grant == "" && g != nil && g.GetName() != c.spent {
		c.spent, c.unused = g.GetName(), g.GetName()
		l.wake.Set()
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

// Failed notes that the probe of a container has failed, and returns whether that is kept from the kubelet: as long as it is held back, and as long as the
// kubelet could restart the container before there are as many failures in a row as the user has written. Then it is told of each, until it has.
func (l *Liveness) Failed(p mesh.Probe, reason string) (kept bool) {
	defer l.keepUsed() // without mu
	l.mu.Lock()
	defer l.mu.Unlock()
	c, now := l.container(p), time.Now()
	if c.told == toldToRestart { // this check is of the container that has restarted, whose failure is another one
		if c.grant != "" {
			c.end()
		}
		c.failing, c.failures, c.told, c.cleared = time.Time{}, 0, 0, true
	}
	if c.failing.IsZero() {
		c.failing, c.passing = now, false
		l.wake.Set()
	}
	c.reason = cut.Text(reason, agentv1.MaxReason)
	enough, may := c.count(p, now), l.mayTell(c, p, now)
	kept = !enough || !may
	if held := kept && !l.isNative(); held != c.held {
		c.held = held
		l.wake.Set()
	}
	if !kept {
		c.told++
		l.used = l.used || c.grant != "" && c.told == toldToRestart
	}
	return kept
}

// count counts a failure, and returns whether there are so many in a row that the kubelet, once it is told of as many as it takes, restarts the container no
// sooner than the user has written. Ends of the sidecar before this agent are in the kubelet's count, so that it may need but one more. There is one failure
// in a period: the kubelet asks three times for what is kept from it, and on a busy node these are not one check.
func (c *container) count(p mesh.Probe, now time.Time) (enough bool) {
	threshold := int(p.FailureThreshold)
	if c.failures == 0 || now.Sub(c.counted) >= time.Duration(p.PeriodSeconds)*time.Second/2 {
		c.failures, c.counted = min(c.failures+1, threshold), now
	}
	if c.cleared {
		threshold -= toldToRestart - 1
	}
	return c.failures >= threshold
}

// isNative reports whether the kubelet alone decides. mu is held.
func (l *Liveness) isNative() bool { return l.native || l.told.GetMode() == agentv1.Restarts_NATIVE }

// mayTell returns whether the kubelet may be told of failures. mu is held.
func (l *Liveness) mayTell(c *container, p mesh.Probe, now time.Time) bool {
	switch {
	case l.isNative():
		if c.grant != "" { // the kubelet does not need it
			c.end()
			l.wake.Set()
		}
		return true
	case l.told.GetMode() == agentv1.Restarts_SUSPENDED:
		return false
	}
	return l.hasGrant(c, p, now) || l.ownTurn(now)
}

// hasGrant returns whether a grant of a container is in use, and begins to use one that there is. mu is held.
func (l *Liveness) hasGrant(c *container, p mesh.Probe, now time.Time) bool {
	if c.grant != "" && (!now.Before(c.until) || !l.isOpen(c.grant)) {
		c.end()
		l.wake.Set()
	}
	if c.grant == "" {
		g := l.grantFor(p.Container)
		if g == nil || g.GetName() == c.spent {
			return false
		}
		c.grant, c.unused, c.told = g.GetName(), "", 0
		c.until = now.Add(grantLife(p))
		l.wake.Set()
	}
	return true
}

// end stops using a grant, which is given back if it cannot have restarted the container. One that may have keeps its place until the restart is seen, or its
// time is over: what passes now may be the new container, of which the control plane does not know yet.
func (c *container) end() {
	c.spent, c.unused = c.grant, ""
	if !c.mayHaveRestarted() {
		c.unused = c.grant
	}
	c.grant = ""
}

// mayHaveRestarted reports whether the kubelet was told often enough to restart the container. Until the agent knows that the kubelet has begun to count, one
// failure may be enough: ends of the sidecar before this agent are in the kubelet's count.
func (c *container) mayHaveRestarted() bool {
	return c.told >= toldToRestart || c.told > 0 && !c.cleared
}

// maxGrantLife bounds what a pod may have written.
const maxGrantLife = 24 * time.Hour

// grantLife is how long a grant is used: as long as the kubelet may need to ask until there are failureThreshold failures, and until it was told often
// enough.
func grantLife(p mesh.Probe) time.Duration {
	seconds := (int64(p.FailureThreshold) + toldToRestart) * (int64(p.PeriodSeconds) + int64(p.TimeoutSeconds))
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
		l.wake.Set() // it may be with another control plane
	case l.lost.IsZero():
		l.lost = time.Now()
	}
}

// Due is set when there is something to report.
func (l *Liveness) Due() run.Signal { return l.wake }

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
