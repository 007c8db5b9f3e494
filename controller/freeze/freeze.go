// Package freeze tells a mesh whose nodes or proxies are gone from one that cannot be seen (package partition). The replica that leads judges; all
// others hold what they were told last. While most nodes of a zone or of the mesh are not seen, their endpoints stay; while most nodes or proxies are not, nothing
// follows from their silence.
package freeze

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/partition"
)

// Mode says what becomes of verdicts.
type Mode string

// Modes.
const (
	// Enforce has them take effect. It is the default.
	Enforce Mode = "enforce"
	// DryRun judges and shows it, and changes nothing.
	DryRun Mode = "dryRun"
	// Off judges nothing.
	Off Mode = "off"
)

// Modes are all that there are.
func Modes() []Mode { return []Mode{Enforce, DryRun, Off} }

// AllowedMode is for errors.
const AllowedMode = "must be enforce, dryRun or off"

// Node is what is judged of a node.
type Node struct {
	Zone    string
	Unknown bool
}

// Options of a Freeze. All are required but Secrets, Mode, Registerer and Loop.
type Options struct {
	// Nodes returns those with pods of the mesh, by name, and an error if the API server is not heard.
	Nodes func() (map[string]Node, error)
	// Proxies returns those that are to run. One with a session, with any replica, is heard now.
	Proxies func(now time.Time) []partition.Member
	// Streams returns the proxies that have an ADS stream, with any replica, and false if not all replicas have answered.
	Streams func(ctx context.Context) (map[string]bool, bool)
	// Lacking returns the replicas that are not heard.
	Lacking func() []string
	// Apply gets in which zones how many tenths of the endpoints are kept, nil if that takes no effect. Tell is called after the verdict has changed that
	// others are to be told. Both return at once, and must not call the Freeze.
	Apply func(kept map[string]int)
	Tell  func()
	// Record writes an event, later. It returns at once.
	Record func(events.Event)
	// Lease of the control plane, about which the events are.
	Lease watch.Key
	// Secrets keep the verdict for replicas that start when no other one runs. Default: none does.
	Secrets    Secrets
	Mode       Mode
	Registerer prometheus.Registerer
	Logger     *slog.Logger
	// Loop watches Lead.
	Loop *heartbeat.Loop
}

// Freeze has the verdict that holds.
type Freeze struct {
	o       Options
	started time.Time
	wake    run.Signal

	mu      sync.Mutex
	mode    Mode
	verdict *Verdict
	// leader is nil while this replica does not lead.
	leader *leading
}

// New returns a Freeze without a verdict. It panics if a metric is registered already.
func New(o Options) *Freeze {
	f := &Freeze{o: o, started: time.Now(), wake: run.NewSignal(), verdict: &Verdict{}}
	if o.Registerer != nil {
		o.Registerer.MustRegister(collector{f})
	}
	f.Configure(o.Mode)
	return f
}

// Configure replaces the mode, which must be one of Modes, or "" for Enforce.
func (f *Freeze) Configure(m Mode) {
	if m == "" {
		m = Enforce
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mode = m
	f.apply()
	f.wake.Set()
}

// apply needs mu, so that a later verdict is applied later.
func (f *Freeze) apply() {
	if f.mode == Enforce {
		f.o.Apply(f.verdict.kept())
	} else {
		f.o.Apply(nil)
	}
}

// Verdict returns the one that holds. It must not be changed.
func (f *Freeze) Verdict() *Verdict {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.verdict
}

// Held says why nothing may follow from the silence of nodes and proxies: no record is forgotten, no restart granted, no proxy skipped. It is "" if
// something may.
func (f *Freeze) Held() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mode != Enforce {
		return ""
	}
	return f.verdict.held()
}

func (f *Freeze) take(v *Verdict) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !v.Newer(f.verdict) {
		return false
	}
	f.verdict = v
	f.apply()
	return true
}
