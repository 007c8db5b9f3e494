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

// gaugesPath selects the gauges that count reads.
const gaugesPath = `/stats?type=Gauges&filter=%5E(http%7Clistener%7Ccluster)%5C..*%5C.(downstream_(rq_active%7Ccx_active%7Cpre_cx_active%7Ccx_tx_bytes_buffered)%7Cupstream_rq_(pending_)?active)%24`

// active counts the open requests and connections of an Envoy.
type active struct {
	// Requests that the applications of this proxy are handling, and inbound connections other than HTTP. Requests that
	// wait for an application that has exited are not included (see generator's holdRoutes).
	inboundRequests, inboundConnections int
	// unread is the number of response bytes that inbound clients have not read yet.
	unread int
	// Open outbound requests and connections of the applications.
	outboundRequests, outboundConnections int
}

// inbound returns the amount of open inbound work.
func (o active) inbound() int { return o.inboundRequests + o.inboundConnections + o.unread }

// all returns the amount of all open work.
func (o active) all() int { return o.inbound() + o.outboundRequests + o.outboundConnections }

func (o active) requests() int    { return o.inboundRequests + o.outboundRequests }
func (o active) connections() int { return o.inboundConnections + o.outboundConnections }

// countActive reads the open requests and connections from Envoy.
func countActive(ctx context.Context, e Envoy) (active, error) {
	stats, err := e.Get(ctx, gaugesPath)
	if err != nil {
		return active{}, fmt.Errorf("count open requests and connections: %w", err)
	}
	return parse(stats)
}

// perThread matches gauges of single threads, which the gauge of their listener includes.
var perThread = regexp.MustCompile(`\.(worker_\d+|main_thread)$`)

// parse reads gauges, one per line. Envoy has no gauge of open TCP connections, so parse subtracts the HTTP connection
// managers' connections from their listeners'. So it leaves out idle HTTP connections, for which a drain need not wait,
// but not connections that have not sent their first bytes.
func parse(stats []byte) (active, error) {
	var o active
	for line := range bytes.Lines(stats) {
		name, text, ok := strings.Cut(strings.TrimSpace(string(line)), ": ")
		kind, prefix, _ := strings.Cut(name, ".")
		cut := strings.LastIndexByte(prefix, '.')
		if !ok || cut < 0 {
			return active{}, fmt.Errorf("count open requests and connections: invalid line in envoy's statistics: %q", line)
		}
		value, err := strconv.Atoi(text)
		if err != nil {
			return active{}, fmt.Errorf("count open requests and connections: invalid line in envoy's statistics: %q", line)
		}
		prefix, gauge := prefix[:cut], prefix[cut+1:]
		if prefix == "admin" || kind == "listener" && perThread.MatchString(prefix) {
			continue // the admin interface counts this request
		}
		if strings.HasPrefix(prefix, mesh.InboundStats) {
			o.addInbound(kind, prefix, gauge, value)
		} else {
			o.addOutbound(kind, prefix, gauge, value)
		}
	}
	// Envoy does not read the gauges atomically.
	o.inboundConnections, o.outboundConnections = max(0, o.inboundConnections), max(0, o.outboundConnections)
	return o, nil
}

func (o *active) addInbound(kind, prefix, gauge string, value int) {
	switch {
	case kind == "cluster" && prefix == mesh.InboundStats+"readiness": // readiness requests are not work
	case kind == "cluster":
		o.inboundRequests += value
	case kind == "listener":
		o.inboundConnections += value
	case gauge == "downstream_cx_active":
		o.inboundConnections -= value
	case gauge == "downstream_cx_tx_bytes_buffered":
		o.unread += value
	}
}

func (o *active) addOutbound(kind, prefix, gauge string, value int) {
	switch {
	case kind == "cluster": // its requests are in downstream_rq_active
	case kind == "listener":
		o.outboundConnections += value
	case gauge == "downstream_cx_active":
		o.outboundConnections -= value
	case gauge == "downstream_rq_active" && prefix != "readiness":
		o.outboundRequests += value
	}
}
