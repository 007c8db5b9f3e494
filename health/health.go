// Package health answers whether a program is alive, and whether it may get traffic: named checks in two groups, over HTTP as kube-apiserver
// and etcd do, over gRPC as grpc.health.v1, and as metrics.
//
// Each check is run by one caller at a time, and its result is kept for a while, so that many callers cost no more than one.
package health

import (
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

// Livez asks whether the program must be restarted: only what a restart would mend may fail. Readyz asks whether it may get traffic.
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
	// Run returns why it is not healthy, nil if it is. It must return when its context ends. Required.
	Run func(context.Context) error
	// Timeout is when its context ends, and it has failed. Default DefaultTimeout.
	Timeout time.Duration
	// Keep is for how long its result is good. Default DefaultKeep, which also is the longest for one that has failed, so that callers
	// that wait for it to pass learn it soon.
	Keep time.Duration
	// Informational checks only warn: one that fails is shown as a warning, and its group passes nevertheless.
	Informational bool
}

// Result of a check.
type Result struct {
	Group Group
	Name  string
	// Err says why it has failed, nil if it has not.
	Err error
	// Informational is that of the Check.
	Informational bool
	// At is when it was run, and Took how long that took.
	At   time.Time
	Took time.Duration
	// Changes are the last ones, oldest first: the first result, and each after that differs in having failed or not.
	Changes []Change
}

// Change of the result of a check.
type Change struct {
	At time.Time
	// Err is nil if the check passed from then on.
	Err error
}

// Failed reports whether the group fails for it.
func (r *Result) Failed() bool { return r.Err != nil && !r.Informational }

// Options of a Registry. The zero value is usable.
type Options struct {
	// Logger is told when a check begins to fail, and when it passes again. Default none.
	Logger *slog.Logger
	// Registerer for the metrics sonde_healthcheck*. Default none.
	Registerer prometheus.Registerer
	// OwnAddress says whether a caller that is not at the loopback address is a program of this host all the same. Default: none is.
	OwnAddress func(*http.Request) bool
	// notify tells a state to the service manager. Default: sd_notify(3).
	notify func(state string) error
}

// Registry has the checks of a program, in the order in which they were added. A group without checks is healthy. It is safe for concurrent
// use.
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
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.OwnAddress == nil {
		o.OwnAddress = func(*http.Request) bool { return false }
	}
	if o.notify == nil {
		o.notify = func(state string) error {
			_, err := daemon.SdNotify(false, state)
			return err
		}
	}
	return &Registry{log: o.Logger, notify: o.notify, metrics: newMetrics(o.Registerer), ownAddress: o.OwnAddress, checks: map[Group][]*check{}}
}

// Add adds a check to a group. A group that has one of this name already is a mistake of the program, and panics.
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

// Loop adds a check to livez that fails while a loop does not turn, and returns the loop. Where it stands is written to the log, once.
func (r *Registry) Loop(name string, limit time.Duration) *heartbeat.Loop {
	l := heartbeat.New(name, limit)
	w := &loopWatch{loop: l, log: r.log}
	r.Add(Livez, Check{Name: "loop-" + name, Run: w.check})
	return l
}

// Results runs the checks of a group at once, where their results are not good any more, and returns all.
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
