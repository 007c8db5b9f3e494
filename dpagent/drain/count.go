package drain

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// gauges asks Envoy for http.<prefix>.downstream_{rq,cx}_active and listener.<prefix>.downstream_{cx,pre_cx}_active.
const gauges = `/stats?type=Gauges&filter=%5E(http%7Clistener)%5C..*%5C.downstream_(rq%7Ccx%7Cpre_cx)_active%24`

// Open is what goes through an Envoy now.
type Open struct {
	// InboundRequests are HTTP requests that the proxy serves, InboundConnections what comes in and is not HTTP.
	InboundRequests, InboundConnections int
	// Requests and Connections are those of both directions.
	Requests, Connections int
}

func (o Open) inbound() int { return o.InboundRequests + o.InboundConnections }
func (o Open) all() int     { return o.Requests + o.Connections }

// Count reads what is open.
func Count(ctx context.Context, e Envoy) (Open, error) {
	stats, err := e.Get(ctx, gauges)
	if err != nil {
		return Open{}, fmt.Errorf("count what is open: %w", err)
	}
	return parse(stats)
}

// part is a gauge of one thread, beside the one of the whole listener.
var part = regexp.MustCompile(`\.(worker_\d+|main_thread)$`)

// parse reads gauges, a line each. Envoy has no gauge for TCP: what a listener has accepted and no HTTP connection
// manager counts is taken for it. So idle HTTP connections, which no drain closes, do not count, and connections of which
// the first bytes are still awaited do.
func parse(stats []byte) (Open, error) {
	var all, in Open
	for line := range bytes.Lines(stats) {
		name, text, ok := strings.Cut(strings.TrimSpace(string(line)), ": ")
		kind, prefix, _ := strings.Cut(name, ".")
		cut := strings.LastIndexByte(prefix, '.')
		if !ok || cut < 0 {
			return Open{}, fmt.Errorf("count what is open: envoy says %q", line)
		}
		value, err := strconv.Atoi(text)
		if err != nil {
			return Open{}, fmt.Errorf("count what is open: envoy says %q", line)
		}
		prefix, gauge := prefix[:cut], prefix[cut+1:]
		if prefix == "admin" || kind == "listener" && part.MatchString(prefix) {
			continue // "admin" is this call itself
		}
		all.add(kind, prefix, gauge, value)
		if strings.HasPrefix(prefix, "inbound") {
			in.add(kind, prefix, gauge, value)
		}
	}
	return Open{
		InboundRequests: in.Requests, InboundConnections: max(0, in.Connections),
		Requests: all.Requests, Connections: max(0, all.Connections),
	}, nil
}

func (o *Open) add(kind, prefix, gauge string, value int) {
	switch {
	case kind == "listener":
		o.Connections += value
	case gauge == "downstream_cx_active":
		o.Connections -= value
	case prefix != "readiness": // somebody asks whether this proxy is ready
		o.Requests += value
	}
}
