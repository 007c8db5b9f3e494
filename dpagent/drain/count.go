package drain

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// gaugesPath selects http.<prefix>.downstream_{rq,cx}_active and listener.<prefix>.downstream_{cx,pre_cx}_active.
const gaugesPath = `/stats?type=Gauges&filter=%5E(http%7Clistener)%5C..*%5C.downstream_(rq%7Ccx%7Cpre_cx)_active%24`

// active is the open work of an Envoy.
type active struct {
	// Inbound HTTP requests, and inbound connections that are not HTTP.
	inboundRequests, inboundConnections int
	// The same of both directions.
	requests, connections int
}

func (o active) inbound() int { return o.inboundRequests + o.inboundConnections }
func (o active) all() int     { return o.requests + o.connections }

// countActive asks Envoy for its open work.
func countActive(ctx context.Context, e Envoy) (active, error) {
	stats, err := e.Get(ctx, gaugesPath)
	if err != nil {
		return active{}, fmt.Errorf("count what is open: %w", err)
	}
	return parse(stats)
}

// perThread matches gauges of single threads, which are part of the gauge of their listener.
var perThread = regexp.MustCompile(`\.(worker_\d+|main_thread)$`)

// parse reads gauges, one per line. Envoy has no gauge of TCP connections: they are the connections of a listener that no
// HTTP connection manager counts. So idle HTTP connections, which a drain need not wait for, do not count, and connections
// whose first bytes are still awaited do.
func parse(stats []byte) (active, error) {
	var all, in active
	for line := range bytes.Lines(stats) {
		name, text, ok := strings.Cut(strings.TrimSpace(string(line)), ": ")
		kind, prefix, _ := strings.Cut(name, ".")
		cut := strings.LastIndexByte(prefix, '.')
		if !ok || cut < 0 {
			return active{}, fmt.Errorf("count what is open: envoy says %q", line)
		}
		value, err := strconv.Atoi(text)
		if err != nil {
			return active{}, fmt.Errorf("count what is open: envoy says %q", line)
		}
		prefix, gauge := prefix[:cut], prefix[cut+1:]
		if prefix == "admin" || kind == "listener" && perThread.MatchString(prefix) {
			continue // admin counts this call itself
		}
		all.add(kind, prefix, gauge, value)
		if strings.HasPrefix(prefix, mesh.InboundStats) {
			in.add(kind, prefix, gauge, value)
		}
	}
	return active{
		inboundRequests: in.requests, inboundConnections: max(0, in.connections),
		requests: all.requests, connections: max(0, all.connections),
	}, nil
}

func (o *active) add(kind, prefix, gauge string, value int) {
	switch {
	case kind == "listener":
		o.connections += value
	case gauge == "downstream_cx_active":
		o.connections -= value
	case prefix != "readiness": // questions whether the proxy is ready are no work
		o.requests += value
	}
}
