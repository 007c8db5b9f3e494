// Package refused counts calls that Envoy refuses and that clients or applications would accept without Envoy.
package refused

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/counters"
	"github.com/sonde-mesh/sonde/internal/run"
)

const (
	// readEvery is how often Envoy's counters are read; window is the time span of a report.
	readEvery = 10 * time.Second
	window    = time.Minute
	// maxCounters limits the number of counters read: each inbound and each service has five.
	maxCounters = 10000
	// countersPath requests the counters that are not 0 and end as in kinds.
	countersPath = `/stats?usedonly&type=Counters&filter=%5E(cluster%5C.inbound_.*%5C.upstream_cx_protocol_error%7C` +
		`http%5C..*%5C.downstream_(rq_(ws_on_non_ws_route%7Cnon_relative_path%7Ctoo_large)%7Ccx_protocol_error))%24`
)

// kinds maps a counter to the cause that it counts, by the prefix and suffix of its name.
var kinds = []struct {
	prefix, suffix string
	cause          agentv1.Cause
}{
	{"cluster.", ".upstream_cx_protocol_error", agentv1.CauseAnswers},
	{"http.", ".downstream_rq_ws_on_non_ws_route", agentv1.CauseUpgrades},
	{"http.", ".downstream_rq_non_relative_path", agentv1.CauseRequests},
	{"http.", ".downstream_rq_too_large", agentv1.CauseRequests},
	{"http.", ".downstream_cx_protocol_error", agentv1.CauseRequests},
}

// Envoy is the Envoy whose counters are read. *envoy.Envoy implements it.
type Envoy interface {
	Get(ctx context.Context, path string) ([]byte, error)
	Running() error
}

// Counter counts calls that Envoy refuses. It is safe for concurrent use.
type Counter struct {
	logger *slog.Logger
	total  *prometheus.CounterVec
	due    run.Signal

	mu sync.Mutex
	// values are the values of Envoy's counters at the last reading.
	values counters.Values
	// recent has the refusals of each reading in the window, the newest last.
	recent []map[key]uint64
}

// key identifies refusals that are counted together.
type key struct {
	cause agentv1.Cause
	where string
}

// New returns a Counter, and registers its metric.
func New(logger *slog.Logger, metrics prometheus.Registerer) *Counter {
	c := &Counter{logger: logger, due: run.NewSignal(), total: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sonde_dpagent_refused_total",
		Help: "Calls that Envoy refused and that would have succeeded without Envoy, by cause: answers (responses of the application that clients would accept), " +
			"upgrades (to a protocol that Envoy does not support) or requests (invalid HTTP, too large, or without a path).",
	}, []string{"cause"})}
	for _, cause := range agentv1.Causes() {
		c.total.WithLabelValues(string(cause))
	}
	metrics.MustRegister(c.total)
	return c
}

// Run reads Envoy's counters until ctx ends.
func (c *Counter) Run(ctx context.Context, e Envoy) {
	for range run.Ticks(ctx, readEvery) {
		if e.Running() != nil {
			continue
		}
		page, err := e.Get(ctx, countersPath)
		if err == nil {
			err = c.read(page)
		}
		if err != nil && ctx.Err() == nil {
			c.logger.Warn("failed to read counters of refused calls from envoy", "err", err)
		}
	}
}

// read adds the growth of Envoy's counters.
func (c *Counter) read(page []byte) error {
	values, err := counters.Parse(page, maxCounters)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	grown, err := values.Since(c.values)
	if err != nil {
		return err
	}
	before := c.list()
	news := map[key]uint64{}
	for counter, n := range grown {
		if k, ok := keyOf(counter); ok && n > 0 { // others count readiness requests, and the admin interface
			news[k] += n
			c.total.WithLabelValues(string(k.cause)).Add(float64(n))
		}
	}
	c.values = values
	c.recent = append(c.recent, news)
	if most := int(window / readEvery); len(c.recent) > most {
		c.recent = slices.Delete(c.recent, 0, 1)
	}
	if !slices.EqualFunc(before, c.list(), func(a, b *agentv1.Refusal) bool {
		return a.GetCause() == b.GetCause() && a.GetWhere() == b.GetWhere() && a.GetCount() == b.GetCount()
	}) {
		c.due.Set()
	}
	return nil
}

// list returns the refusals in the window, the most frequent first, up to the limit of a report. The caller holds mu.
func (c *Counter) list() []*agentv1.Refusal {
	sums := map[key]uint64{}
	for _, news := range c.recent {
		for k, n := range news {
			sums[k] += n
		}
	}
	all := slices.SortedFunc(maps.Keys(sums), func(a, b key) int {
		return cmp.Or(cmp.Compare(sums[b], sums[a]), cmp.Compare(a.cause, b.cause), cmp.Compare(a.where, b.where))
	})
	var list []*agentv1.Refusal
	for _, k := range all[:min(len(all), agentv1.MaxReported)] {
		list = append(list, &agentv1.Refusal{Cause: string(k.cause), Where: k.where,
			Count: uint32(min(sums[k], agentv1.MaxRefusals))})
	}
	return list
}

// Due is set when a report is due.
func (c *Counter) Due() run.Signal { return c.due }

// Begin makes a report due unless it would be empty, since the control plane may have no state of this agent.
func (c *Counter) Begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.list()) > 0 {
		c.due.Set()
	}
}

// Report returns the refusals of the last minute.
func (c *Counter) Report() *agentv1.Refusals {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &agentv1.Refusals{Refusals: c.list()}
}

// keyOf returns the key of a counter, and false if the counter is not about calls to or from the application.
func keyOf(counter string) (key, bool) {
	for _, kind := range kinds {
		name, begins := strings.CutPrefix(counter, kind.prefix)
		name, ends := strings.CutSuffix(name, kind.suffix)
		if !begins || !ends {
			continue
		}
		if port, inbound := strings.CutPrefix(name, mesh.InboundStats); inbound {
			_, err := strconv.ParseUint(port, 10, 16)
			return key{kind.cause, "inbound " + port}, err == nil
		}
		service, outbound := strings.CutPrefix(name, mesh.OutboundStats)
		return key{kind.cause, "service " + service}, outbound
	}
	return key{}, false
}
