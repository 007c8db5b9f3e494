// Package held decides whether the agent passes failures of a guarded liveness probe on to the kubelet. It passes them
// on while the control plane grants a restart of the container; otherwise it holds them back.
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
	// Keep stores the control plane's message for the next agent, which passes it to Told. It must return at once.
	Keep   func(*agentv1.Restarts)
	Logger *slog.Logger
	// Registerer of the metrics.
	Registerer prometheus.Registerer
}

// Liveness holds the state of a pod's guarded liveness probes. It is safe for concurrent use. All its times are
// durations on the monotonic clock.
type Liveness struct {
	o      Options
	wake   run.Signal // set when a report is due
	jitter float64    // added to WhenAway.after, as a share of it, from 0 to 1

	keeping sync.Mutex // held while state is kept, so that the newest is kept last

	mu         sync.Mutex
	told       *agentv1.Restarts // nil before the first message
	native     bool              // the control plane is too old to grant
	epoch      int64             // the highest epoch of a grant
	used       bool              // a grant is or may be used up, which has to be kept
	lost       time.Time         // when the session ended; zero during a session
	containers map[string]*container
}

// container is the state of one container's liveness probe.
type container struct {
	failing  time.Time // since when the probe fails; zero if it does not
	passing  bool
	reason   string
	failures int       // failures in a row, at most the user's threshold
	counted  time.Time // time of the last counted failure
	// cleared means that the kubelet has started a new count since this agent started: the agent passed on a success, or
	// the kubelet restarted the container
	cleared bool
	// told is the number of failures passed on since the kubelet's current count began: at toldToRestart the kubelet
	// restarts the container before the next check
	told   int
	held   bool   // the last failure was held back
	grant  string // the grant in use
	until  time.Time
	spent  string // the last grant in use before
	unused string // equals spent if that grant was not used up
}

// toldToRestart is how many failures in a row the agent passes on until the kubelet restarts the container.
const toldToRestart = mesh.GuardedFailureThreshold

// New returns a Liveness of containers that pass. It holds failures back until a session starts.
func New(o Options) *Liveness {
	l := &Liveness{
		o: o, wake: run.NewSignal(), containers: map[string]*container{}, lost: time.Now(),
		jitter: rand.Float64(), //nolint:gosec // jitter, not a secret
	}
	o.Registerer.MustRegister(heldMetric{l})
	return l
}

// Passed records that the probe of a container has passed.
func (l *Liveness) Passed(p mesh.Probe) {
	defer l.keepUsed() // without mu
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.container(p)
	if c.passing {
		return
	}
	if c.grant != "" {
		// The kubelet may have restarted the container after fewer than toldToRestart failures, since it also counts an end
		// of the sidecar as a failure.
		l.used = l.used || c.told > 0
		c.end()
	}
	c.failing, c.reason, c.passing, c.held = time.Time{}, "", true, false
	c.failures, c.told, c.cleared = 0, 0, true
	l.giveBack(p.Container, c)
	l.wake.Set()
}

// giveBack returns a grant unused if the container passes before the agent has passed on any failure. The caller holds
// mu.
func (l *Liveness) giveBack(name string, c *container) {
	if g := l.grantFor(name); c.passing && c.grant == "" && g != nil && g.GetName() != c.spent {
		c.spent, c.unused = g.GetName(), g.GetName()
		l.wake.Set()
	}
}

// container returns the state of a probe's container. The caller holds mu.
func (l *Liveness) container(p mesh.Probe) *container { return l.containerNamed(p.Container) }

// containerNamed returns the state of a container, new if needed. The caller holds mu.
func (l *Liveness) containerNamed(name string) *container {
	c := l.containers[name]
	if c == nil {
		c = &container{}
		l.containers[name] = c
	}
	return c
}

// Failed records that the probe of a container has failed, and reports whether to keep the failure from the kubelet:
// because it is held back, or because the kubelet could restart the container before the user's failureThreshold is
// reached.
func (l *Liveness) Failed(p mesh.Probe, reason string) (kept bool) {
	defer l.keepUsed() // without mu
	l.mu.Lock()
	defer l.mu.Unlock()
	c, now := l.container(p), time.Now()
	if c.told == toldToRestart { // the container has restarted, so this is the first failure of the new one
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

// count counts a failure. It reports whether the kubelet, if it now gets the failures that it needs for a restart,
// restarts the container no sooner than the user's failureThreshold. The kubelet also counts an end of the sidecar
// before this agent started as a failure, so it may need only one more. count counts one failure per period: after
// Errored the kubelet checks up to three times, and on a busy node these are separate checks.
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

// isNative reports whether the kubelet alone decides. The caller holds mu.
func (l *Liveness) isNative() bool { return l.native || l.told.GetMode() == agentv1.Restarts_NATIVE }

// mayTell reports whether failures may be passed on to the kubelet. The caller holds mu.
func (l *Liveness) mayTell(c *container, p mesh.Probe, now time.Time) bool {
	switch {
	case l.isNative():
		if c.grant != "" { // no grant is needed in native mode
			c.end()
			l.wake.Set()
		}
		return true
	case l.told.GetMode() == agentv1.Restarts_SUSPENDED:
		return false
	}
	return l.hasGrant(c, p, now) || l.ownTurn(now)
}

// hasGrant reports whether a grant for a container is in use, and starts to use an available grant. The caller holds
// mu.
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

// end stops using a grant, and returns it unused if it cannot have restarted the container. A grant that may have
// restarted the container stays in use at the control plane until the restart is seen or the grant expires: a passing
// probe may be of the new container, which the control plane has not seen yet.
func (c *container) end() {
	c.spent, c.unused = c.grant, ""
	if !c.mayHaveRestarted() {
		c.unused = c.grant
	}
	c.grant = ""
}

// mayHaveRestarted reports whether the kubelet got enough failures to restart the container. Until the agent has seen
// the kubelet's count start, one failure may be enough, since the kubelet also counts an end of the sidecar before this
// agent started as a failure.
func (c *container) mayHaveRestarted() bool {
	return c.told >= toldToRestart || c.told > 0 && !c.cleared
}

// maxGrantLife limits grantLife, since the author of a pod chooses the periods and thresholds of its probes.
const maxGrantLife = 24 * time.Hour

// grantLife is how long a grant may be used: as long as failureThreshold failures may take, and then as many as the
// kubelet needs for a restart.
func grantLife(p mesh.Probe) time.Duration {
	seconds := (int64(p.FailureThreshold) + toldToRestart) * (int64(p.PeriodSeconds) + int64(p.TimeoutSeconds))
	return time.Duration(min(seconds, int64(maxGrantLife/time.Second))) * time.Second
}

// grantFor returns the current grant of a container, or nil. The caller holds mu.
func (l *Liveness) grantFor(container string) *agentv1.RestartGrant {
	i := slices.IndexFunc(l.told.GetGrants(), func(g *agentv1.RestartGrant) bool {
		return g.GetContainer() == container && g.GetEpoch() >= l.epoch
	})
	if i < 0 {
		return nil
	}
	return l.told.GetGrants()[i]
}

// ownTurn reports whether the agent passes failures on because the control plane has been away for long enough. The
// caller holds mu.
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

// Told applies a message of the control plane. Nil means that the control plane is too old to grant restarts: the agent
// then passes all failures on.
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
			l.o.Logger.Warn("ignoring restart grant of an earlier leader", "grant", g.GetName(), "container", g.GetContainer(),
				"epoch", g.GetEpoch(), "newest", newest)
		}
	}
	l.keep()
}

// Connected records whether the agent has a session.
func (l *Liveness) Connected(is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case is:
		l.lost = time.Time{}
		l.wake.Set() // the session may be with another control plane
	case l.lost.IsZero():
		l.lost = time.Now()
	}
}

// Due is set when a report is due.
func (l *Liveness) Due() run.Signal { return l.wake }

// Report returns the containers whose probes pass or fail now, and the unused grants.
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
				Container: name, Failing: durationpb.New(time.Since(c.failing)), Reason: c.reason, Grant: c.grant,
				Told: !c.held && c.grant == "",
			})
		}
	}
	return m
}
