package plaintext

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/counters"
)

const (
	droppedPath = `/stats?usedonly&type=Counters&filter=%5Eaccess_logs%5C.open_telemetry_access_log%5C..*%5C.` +
		mesh.RecordsDropped + `%24`
	// maxDroppedCounters limits the number of counters read: each inbound has two, and most Dataplanes have few inbounds.
	maxDroppedCounters = 2000
)

// readDropped reads the number of lost records, and counts them without a source. A previous agent of the same Envoy
// may have counted them already: counting twice is better than missing them.
func (c *Counter) readDropped(ctx context.Context, e Envoy) error {
	page, err := e.Get(ctx, droppedPath)
	if err != nil {
		return err
	}
	values, err := counters.Parse(page, maxDroppedCounters)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	grown, err := values.Since(c.dropped)
	if err != nil {
		return err
	}
	lost := map[key]uint64{}
	for counter, n := range grown {
		k, ok := keyOf(counter)
		if !ok {
			return fmt.Errorf("envoy's statistics: %.200q: must be a counter of records", counter)
		}
		lost[k] += n
	}
	c.recorded, c.dropped = false, values
	for k, n := range lost {
		if n > 0 {
			c.lost.Add(float64(n))
			c.inbound(k).others.add(n, time.Now())
			c.due.Set()
		}
	}
	return nil
}

// keyOf returns the key of a counter.
func keyOf(counter string) (key, bool) {
	name, ours := strings.CutPrefix(counter, mesh.RecordsStats)
	name, dropped := strings.CutSuffix(name, "."+mesh.RecordsDropped)
	log, port, tagged := strings.Cut(name, "."+mesh.InboundStats)
	k, ok := logs[log]
	if !tagged {
		return k, ours && dropped && ok && log == mesh.RecordsNoInbound
	}
	n, err := strconv.ParseUint(port, 10, 16)
	k.port = uint32(n)
	return k, ours && dropped && ok && err == nil
}
