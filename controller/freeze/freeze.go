// Package freeze distinguishes lost nodes and proxies from a lost connection to them (package partition). The leader
// judges which are lost, and all other replicas use its last verdict. While most nodes of a zone or of the mesh are
// silent, their endpoints stay. While most nodes or proxies are silent, the control plane does not treat any silent one
// as dead.
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

// Mode is the effect of verdicts.
type Mode string

// Modes.
const (
	// Enforce applies verdicts. It is the default.
	Enforce Mode = "enforce"
	// DryRun judges and shows verdicts without applying them.
	DryRun Mode = "dryRun"
	// Off makes no verdicts.
	Off Mode = "off"
)

// Modes returns all modes.
func Modes() []Mode { return []Mode{Enforce, DryRun, Off} }

// AllowedMode describes the allowed modes in errors.
const AllowedMode = "must be enforce, dryRun or off"

// Node is the state of a node that Freeze judges.
type Node struct {
	Zone    string
	Unknown bool
}

// Options of a Freeze. All are required but Secrets, Mode, Registerer and Loop.
type Options struct {
	// Nodes returns the nodes with pods of the mesh, by name, and an error while the API server is disconnected.
	Nodes func() (map[string]Node, error)
	// Proxies returns the proxies that should be running. Each counts as last seen now if it has a session, with any
	// replica.
	Proxies func(now time.Time) []partition.Member
	// Streams returns the proxies that have an ADS stream with any replica, and false if not all replicas answered.
	Streams func(ctx context.Context) (map[string]bool, bool)
	// Lacking returns the disconnected replicas.
	Lacking func() []string
	// Apply receives, by zone, how many tenths of the endpoints are kept, or nil if no verdict applies. Tell is called
	// when the verdict has changed and other replicas need it. Both must return at once, and must not call the Freeze.
	Apply func(kept map[string]int)
	Tell  func()
	// Record queues an event. It returns at once.
	Record func(events.Event)
	// Lease of the control plane, the object of the events.
	Lease watch.Key
	// Secrets keep the verdict for replicas that start while no other one runs. Default: verdicts are not stored.
	Secrets    Secrets
	Mode       Mode
	Registerer prometheus.Registerer
	Logger     *slog.Logger
	// Loop watches Lead.
	Loop *heartbeat.Loop
}

// Freeze has the current verdict.
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

// New returns a Freeze without a verdict. It panics if a metric is already registered.
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

// apply passes the verdict to Options.Apply. The caller holds mu, so that a later verdict is applied later.
func (f *Freeze) apply() {
	if f.mode == Enforce {
		f.o.Apply(f.verdict.kept())
	} else {
		f.o.Apply(nil)
	}
}

// Verdict returns the current verdict. The caller must not change it.
func (f *Freeze) Verdict() *Verdict {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.verdict
}

// Held returns why silent nodes and proxies must not be treated as dead, "" if they may. While it is not "", no record
// is forgotten, no restart is granted and no proxy is skipped.
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
