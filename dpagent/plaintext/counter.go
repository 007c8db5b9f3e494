package plaintext

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/counters"
	"github.com/sonde-mesh/sonde/internal/run"
)

const (
	// maxInbounds and maxSources limit a report. maxTracked limits the sources counted per inbound. maxNoInbound limits
	// the counted ports without an inbound, since a client may try all ports; further ones count as port 0.
	maxInbounds  = agentv1.MaxReported
	maxSources   = agentv1.MaxReported
	maxTracked   = 200
	maxNoInbound = 5
	// readEvery is how often Envoy's counters of lost records are read while records arrive; idleEvery is how often
	// otherwise. Both are long, since Envoy's main thread scans all its statistics for each reading.
	readEvery = time.Minute
	idleEvery = 10 * time.Minute
)

// Kind is the reason why a mesh in mode STRICT would reject a connection.
type Kind = agentv1.PlaintextInbound_Kind

// logs maps the name of an access log to the key under which its records are counted, without the port.
var logs = map[string]key{
	mesh.RecordsRequests:    {kind: agentv1.PlaintextInbound_PLAINTEXT, http: true},
	mesh.RecordsConnections: {kind: agentv1.PlaintextInbound_PLAINTEXT},
	mesh.RecordsTLS:         {kind: agentv1.PlaintextInbound_APPLICATION_TLS},
	mesh.RecordsNoInbound:   {kind: agentv1.PlaintextInbound_NO_INBOUND},
}

// Envoy is Envoy's admin interface. *envoy.Envoy implements it.
type Envoy interface {
	Get(ctx context.Context, path string) ([]byte, error)
	// Running returns why Envoy does not run, nil if it does.
	Running() error
}

// Options of a Counter. All are required.
type Options struct {
	// Logger to use.
	Logger *slog.Logger
	// Registerer of the metrics.
	Registerer prometheus.Registerer
}

// Counter counts traffic that STRICT would reject. It is safe for concurrent use.
type Counter struct {
	o      Options
	due    run.Signal
	lost   prometheus.Counter
	failed prometheus.Counter

	mu       sync.Mutex
	inbounds map[key]*inbound
	open     open
	// recorded means that records have arrived since Envoy's counters were last read.
	recorded bool
	// dropped is the number of lost records at the last reading, by counter.
	dropped counters.Values
}

// key is a port and the reason why STRICT would reject its traffic. A port whose protocol changes has two keys.
type key struct {
	port uint32
	kind Kind
	http bool
}

// overflows is the number of keys with port 0.
const overflows = 4

// New returns a Counter. Serve and Run must be called.
func New(o Options) *Counter {
	c := &Counter{
		o: o, due: run.NewSignal(), inbounds: map[key]*inbound{}, open: open{},
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonde_dpagent_plaintext_lost_total",
			Help: "Lost access log records of connections and requests that STRICT would reject. Their sources are unknown.",
		}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonde_dpagent_plaintext_reads_failed_total",
			Help: "Failed attempts to read the number of lost records from Envoy.",
		}),
	}
	o.Registerer.MustRegister(c.lost, c.failed)
	return c
}

// Due is set when a report is due.
func (c *Counter) Due() run.Signal { return c.due }

// All makes a report due, even if nothing was counted.
func (c *Counter) All() { c.due.Set() }

// add counts the records of an access log.
func (c *Counter) add(of key, records []record) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range records {
		r := &records[i]
		if !of.http && r.received == 0 {
			continue // STRICT accepts a connection without data, such as a TCP probe
		}
		of.port = r.port
		in := c.inbound(of)
		switch {
		case r.kubelet && !r.goesOn:
			in.probes.add(1, now)
		case r.kubelet: // counted at the connection's beginning
		case r.goesOn:
			c.open.goesOn(r.connection, in.source(r.source), now)
		default:
			in.source(r.source).add(1, now)
			c.open.end(r.connection)
		}
		c.recorded = true
		c.due.Set()
	}
}

// inbound returns the counts of a port, or of port 0 if too many ports are counted. The caller holds mu.
func (c *Counter) inbound(k key) *inbound {
	if in := c.inbounds[k]; in != nil {
		return in
	}
	if k.port != 0 && !c.hasRoom(k.kind) {
		return c.inbound(key{0, k.kind, k.http})
	}
	in := &inbound{sources: map[netip.Addr]*tally{}}
	c.inbounds[k] = in
	return in
}

// hasRoom reports whether one more port can be counted, besides port 0 of each kind.
func (c *Counter) hasRoom(kind Kind) bool {
	all, same := 0, 0
	for k := range c.inbounds {
		if k.port == 0 {
			continue
		}
		all++
		if k.kind == kind {
			same++
		}
	}
	return all < maxInbounds-overflows && (kind != agentv1.PlaintextInbound_NO_INBOUND || same < maxNoInbound)
}

// Run reads Envoy's counters until ctx ends.
func (c *Counter) Run(ctx context.Context, e Envoy) {
	var read time.Time
	for range run.Ticks(ctx, readEvery) {
		recorded, open := c.recent()
		if open {
			c.due.Set() // also report the end of traffic that is no longer recorded
		}
		if e.Running() != nil || !recorded && !read.IsZero() && time.Since(read) < idleEvery {
			continue
		}
		if err := c.readDropped(ctx, e); err != nil {
			c.failed.Inc()
			if ctx.Err() == nil {
				c.o.Logger.Warn("failed to read counters of records from envoy", "err", err)
			}
			continue
		}
		read = time.Now()
	}
}

// recent reports whether records have arrived since Envoy's counters were read, so that some may be lost, and whether
// any connection is ongoing according to the last records.
func (c *Counter) recent() (recorded, open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recorded, len(c.open) > 0
}
