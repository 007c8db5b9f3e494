// Package verdicts remembers the verdicts of the agent's probes, and when they last changed.
package verdicts

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/dpagent/serviceprobe"
	"github.com/sonde-mesh/sonde/internal/cut"
	"github.com/sonde-mesh/sonde/internal/run"
)

// History has the latest changes of each probe. It is safe for concurrent use. All its times are durations on the
// monotonic clock.
type History struct {
	wake run.Signal // set when a report is due

	mu     sync.Mutex
	probes map[key]*changes
}

var _ serviceprobe.Reporter = (*History)(nil)

// key is a probe of a container or of an inbound.
type key struct {
	container string
	inbound   netip.AddrPort
	probe     mesh.ProbeType
}

// order is the order of a container's probes.
var order = []mesh.ProbeType{mesh.ProbeStartup, mesh.ProbeLiveness, mesh.ProbeReadiness}

func (k key) compare(other key) int {
	return cmp.Or(cmp.Compare(k.container, other.container), k.inbound.Compare(other.inbound),
		cmp.Compare(slices.Index(order, k.probe), slices.Index(order, other.probe)))
}

// changes are the latest changes of one probe, oldest first.
type changes struct {
	latest  []change
	total   uint32
	reason  string // of the last check
	checked time.Time
	// patience is how long the kubelet may send no request before the last verdict is outdated; 0 for an inbound, which
	// the agent itself checks.
	patience time.Duration
}

type change struct {
	verdict agentv1.VerdictChange_Verdict
	at      time.Time
}

// verdict returns the current verdict, VERDICT_UNSPECIFIED before the first.
func (c *changes) verdict() agentv1.VerdictChange_Verdict {
	if len(c.latest) == 0 {
		return agentv1.VerdictChange_VERDICT_UNSPECIFIED
	}
	return c.latest[len(c.latest)-1].verdict
}

// New returns the History of a probe table, whose probes have not been checked yet. Entries without a container or a
// type are not remembered, since nothing names them.
func New(table mesh.ProbeTable) *History {
	h := &History{wake: run.NewSignal(), probes: map[key]*changes{}}
	for _, p := range table {
		if slices.Contains(order, p.Type) && agentv1.IsContainerName(p.Container) {
			h.probes[key{container: p.Container, probe: p.Type}] = &changes{patience: patienceOf(p)}
		}
	}
	return h
}

const (
	// missedPeriods is after how many periods without a request the kubelet counts as no longer probing.
	missedPeriods = 3
	// minPatience allows for a busy kubelet.
	minPatience = 30 * time.Second
	// silenceEvery is how often Run looks for silence.
	silenceEvery = 5 * time.Second
)

func patienceOf(p mesh.Probe) time.Duration {
	period := time.Duration(cmp.Or(p.PeriodSeconds, mesh.DefaultPeriodSeconds)) * time.Second
	return max(minPatience, missedPeriods*period+probe.Longest(p))
}

// Run records, until ctx ends, which probes the kubelet no longer requests, for instance because their container
// exited.
func (h *History) Run(ctx context.Context) {
	for range run.Ticks(ctx, silenceEvery) {
		h.expire()
	}
}

// expire ends verdicts that are too old. A startup probe that has passed keeps its verdict, since the kubelet checks it
// only until then.
func (h *History) expire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, c := range h.probes {
		if c.patience == 0 || c.total == 0 || k.probe == mesh.ProbeStartup && c.passes() ||
			time.Since(c.checked) <= c.patience {
			continue
		}
		h.record(c, agentv1.VerdictChange_NOT_ASKED, "", c.checked)
	}
}

// passes reports whether the last check passed.
func (c *changes) passes() bool {
	return c.verdict() == agentv1.VerdictChange_SUCCESS || c.verdict() == agentv1.VerdictChange_WARNING
}

// Checked records a check of a probe of the table, as probe.Options.Checked.
func (h *History) Checked(p mesh.Probe, o probe.Outcome) {
	verdict := agentv1.VerdictOf(o.Verdict)
	if o.Class == probe.Held {
		verdict = agentv1.VerdictChange_HELD
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.probes[key{container: p.Container, probe: p.Type}]; c != nil {
		c.checked = time.Now()
		h.record(c, verdict, o.Reason, c.checked)
	}
}

// Set implements serviceprobe.Reporter.
func (h *History) Set(inbound netip.AddrPort, s serviceprobe.State) {
	verdict := agentv1.VerdictChange_FAILURE
	switch {
	case s.NoVerdict:
		verdict = agentv1.VerdictChange_ERRORED
	case s.Ready:
		verdict = agentv1.VerdictChange_SUCCESS
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	k := key{inbound: inbound, probe: mesh.ProbeReadiness}
	if h.probes[k] == nil {
		h.probes[k] = &changes{}
	}
	h.record(h.probes[k], verdict, s.Reason, time.Now())
}

// Forget implements serviceprobe.Reporter.
func (h *History) Forget(inbound netip.AddrPort) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.probes, key{inbound: inbound, probe: mesh.ProbeReadiness})
	h.wake.Set()
}

// record records a verdict since a time. The caller holds mu.
func (h *History) record(c *changes, v agentv1.VerdictChange_Verdict, reason string, at time.Time) {
	if v == agentv1.VerdictChange_SUCCESS {
		reason = ""
	}
	reason = cut.Marked(probe.Lasting(reason), agentv1.MaxVerdictReason)
	if c.verdict() == v && c.reason == reason {
		return
	}
	if c.verdict() != v {
		if len(c.latest) == agentv1.MaxChanges {
			c.latest = slices.Delete(c.latest, 0, 1)
		}
		c.latest = append(c.latest, change{v, at})
		c.total++
	}
	c.reason = reason
	h.wake.Set()
}

// Due is set when a report is due.
func (h *History) Due() run.Signal { return h.wake }

// Report returns the verdicts of all probes, or of as many as a report may have: the ones that do not succeed first.
func (h *History) Report() *agentv1.Verdicts {
	h.mu.Lock()
	defer h.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(h.probes), key.compare)
	if len(keys) > agentv1.MaxProbes {
		slices.SortStableFunc(keys, func(a, b key) int { return cmp.Compare(h.succeeds(a), h.succeeds(b)) })
	}
	listed := min(len(keys), agentv1.MaxProbes)
	m := &agentv1.Verdicts{LeftOut: uint32(len(keys) - listed)}
	now := time.Now()
	for _, k := range keys[:listed] {
		m.Probes = append(m.Probes, h.probes[k].report(k, now))
	}
	return m
}

// succeeds returns 1 if a probe succeeds, 0 if it does not. The caller holds mu.
func (h *History) succeeds(k key) int {
	if h.probes[k].verdict() == agentv1.VerdictChange_SUCCESS {
		return 1
	}
	return 0
}

func (c *changes) report(k key, now time.Time) *agentv1.ProbeVerdicts {
	m := &agentv1.ProbeVerdicts{Container: k.container, Probe: string(k.probe), Total: c.total, Reason: c.reason}
	if k.inbound.IsValid() {
		m.Inbound = k.inbound.String()
	}
	for _, one := range c.latest {
		m.Changes = append(m.Changes, &agentv1.VerdictChange{Verdict: one.verdict, Ago: durationpb.New(now.Sub(one.at))})
	}
	return m
}
