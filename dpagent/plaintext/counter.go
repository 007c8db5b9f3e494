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
	"github.com/sonde-mesh/sonde/internal/run"
)

const (
	// maxInbounds and maxSources are those of a report, maxTracked how many sources of an inbound are counted for it. maxNoInbound are ports without
	// an inbound, of which a client may try all: more of them are port 0.
	maxInbounds  = agentv1.MaxReported
	maxSources   = agentv1.MaxReported
	maxTracked   = 200
	maxNoInbound = 5
	// readEvery is how often Envoy's counters of what has not come are read while there are records, idleEvery how often while there are none:
	// Envoy's main thread looks through all its statistics for them.
	readEvery = time.Minute
	idleEvery = 10 * time.Minute
)

// Kind is why a mesh in mode STRICT would refuse a connection.
type Kind = agentv1.PlaintextInbound_Kind

// logs are the access logs by name: what is in them, without the port.
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

// Counter counts. It is safe for concurrent use.
type Counter struct {
	o      Options
	due    run.Signal
	lost   prometheus.Counter
	failed prometheus.Counter

	mu       sync.Mutex
	inbounds map[key]*inbound
	open     open
	// recorded says that there were records since Envoy's counters were read.
	recorded bool
	// dropped is how many records had not come, by counter, when that was read last.
	dropped map[string]uint64
}

// key is a port and why STRICT would refuse what comes to it. Of a port whose protocol changes there are two.
type key struct {
	port uint32
	kind Kind
	http bool
}

// overflows is how many keys have port 0.
const overflows = 4

// New returns a Counter. Serve and Run have to be called.
func New(o Options) *Counter {
	c := &Counter{
		o: o, due: run.NewSignal(), inbounds: map[key]*inbound{}, open: open{},
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonde_dpagent_plaintext_lost_total",
			Help: "Records of connections and requests that STRICT would refuse which have not come from Envoy, so that it is not known who has made them.",
		}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonde_dpagent_plaintext_reads_failed_total", Help: "Tries to read from Envoy how many of these records have not come that have failed.",
		}),
	}
	o.Registerer.MustRegister(c.lost, c.failed)
	return c
}

// Due is set when there is something to report.
func (c *Counter) Due() run.Signal { return c.due }

// All makes a report due, also if nothing was counted.
func (c *Counter) All() { c.due.Set() }

// add counts the records of an access log.
func (c *Counter) add(of key, records []record) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range records {
		r := &records[i]
		if !of.http && r.received == 0 {
			continue // STRICT accepts a connection on which nothing comes, such as a probe that only connects
		}
		of.port = r.port
		in := c.inbound(of)
		switch {
		case r.kubelet && !r.goesOn:
			in.probes.add(1, now)
		case r.kubelet: // it was counted when it began
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

// inbound returns what is counted of a port, or of all for which there is no room. It needs mu.
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

// hasRoom reports whether there is room for one more port, beside port 0 of each kind.
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
			c.due.Set() // so that the end of what was not recorded is reported, too
		}
		if e.Running() != nil || !recorded && !read.IsZero() && time.Since(read) < idleEvery {
			continue
		}
		if err := c.readDropped(ctx, e); err != nil {
			c.failed.Inc()
			if ctx.Err() == nil {
				c.o.Logger.Warn("counters of records not read from Envoy", "err", err)
			}
			continue
		}
		read = time.Now()
	}
}

// recent reports whether there were records, of which some may not have come, since Envoy's counters were read, and whether something goes on by
// the last records.
func (c *Counter) recent() (recorded, open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recorded, len(c.open) > 0
}
