// Package health reports whether a program is alive, and whether it may get traffic: named checks in two groups, over
// HTTP as kube-apiserver and etcd do, over gRPC as grpc.health.v1, and as metrics.
//
// One caller at a time runs a check, and its result is reused for a while, so that many callers cost no more than one.
package health

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/health/heartbeat"
)

// Group of checks.
type Group string

// Livez tells whether the program must be restarted, so only checks that a restart would fix may fail it. Readyz tells
// whether the program may get traffic.
const (
	Livez  Group = "livez"
	Readyz Group = "readyz"
)

var groups = []Group{Livez, Readyz}

// Defaults of a Check.
const (
	DefaultTimeout = 2 * time.Second
	DefaultKeep    = time.Second
)

// Check of one thing.
type Check struct {
	// Name in URLs: lower case letters, digits and dashes.
	Name string
	// Run returns the problem, or nil. It must return when its context ends. Required.
	Run func(context.Context) error
	// Timeout is when the context of Run ends and the check counts as failed. Default DefaultTimeout.
	Timeout time.Duration
	// Keep is how long the result is reused. Default DefaultKeep, which is also the maximum for a failure, so that callers
	// that wait for success get it soon.
	Keep time.Duration
	// Informational checks only warn: a failure appears as a warning, and does not fail the group.
	Informational bool
}

// Result of a check.
type Result struct {
	Group Group
	Name  string
	// Err is the failure, or nil.
	Err error
	// Informational is as in Check.
	Informational bool
	// At is when the check began, and Took is how long it took.
	At   time.Time
	Took time.Duration
	// Changes are the last changes, oldest first: the first result, and each later change between pass and failure.
	Changes []Change
}

// Change of the result of a check.
type Change struct {
	At time.Time
	// Err is nil if the check passed from then on.
	Err error
}

// Failed reports whether the result fails its group.
func (r *Result) Failed() bool { return r.Err != nil && !r.Informational }

// Options of a Registry. The zero value is usable.
type Options struct {
	// Logger logs when a check starts to fail, and when it passes again. Default: no logging.
	Logger *slog.Logger
	// Registerer for the metrics sonde_healthcheck*. Default: no metrics.
	Registerer prometheus.Registerer
	// OwnAddress reports whether a caller from a non-loopback address is nevertheless a program on this host. Default:
	// never.
	OwnAddress func(*http.Request) bool
	// notify sends a state to the service manager. Default: sd_notify(3).
	notify func(state string) error
}

// Registry holds the checks of a program, in the order in which they were added. A group without checks is healthy. It
// is safe for concurrent use.
type Registry struct {
	log        *slog.Logger
	notify     func(state string) error
	metrics    *metrics
	ownAddress func(*http.Request) bool

	mu     sync.RWMutex
	checks map[Group][]*check
}

// New returns a Registry without checks.
func New(o Options) *Registry {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.OwnAddress == nil {
		o.OwnAddress = func(*http.Request) bool { return false }
	}
	if o.notify == nil {
		o.notify = func(state string) error {
			_, err := daemon.SdNotify(false, state)
			return err
		}
	}
	return &Registry{log: o.Logger, notify: o.notify, metrics: newMetrics(o.Registerer), ownAddress: o.OwnAddress,
		checks: map[Group][]*check{}}
}

// Add adds a check to a group. A duplicate name is a programming error, and panics.
func (r *Registry) Add(group Group, c Check) {
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Keep == 0 {
		c.Keep = DefaultKeep
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.ContainsFunc(r.checks[group], func(other *check) bool { return other.Name == c.Name }) {
		panic("health: " + string(group) + " has two checks with the name " + c.Name)
	}
	r.checks[group] = append(r.checks[group], &check{Check: c, group: group, log: r.log, metrics: r.metrics})
}

// Loop adds a check to livez that fails while a loop is stuck, and returns the loop. For each stall, all stacks are
// logged once.
func (r *Registry) Loop(name string, limit time.Duration) *heartbeat.Loop {
	l := heartbeat.New(name, limit)
	w := &loopWatch{loop: l, log: r.log}
	r.Add(Livez, Check{Name: "loop-" + name, Run: w.check})
	return l
}

// Results runs the checks of a group whose results are stale, concurrently, and returns all results.
func (r *Registry) Results(ctx context.Context, group Group) []Result {
	return resultsOf(ctx, r.of(group))
}

// of returns the checks of a group.
func (r *Registry) of(group Group) []*check {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Clone(r.checks[group])
}

func resultsOf(ctx context.Context, checks []*check) []Result {
	results := make([]Result, len(checks))
	var running sync.WaitGroup
	for i, c := range checks {
		if kept, ok := c.kept(); ok {
			results[i] = kept
			continue
		}
		running.Go(func() { results[i] = c.result(ctx) })
	}
	running.Wait()
	return results
}
