package plaintext

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const (
	droppedPath = `/stats?usedonly&type=Counters&filter=%5Eaccess_logs%5C.open_telemetry_access_log%5C..*%5C.` + mesh.RecordsDropped + `%24`
	// maxDroppedCounters is how many counters are read: there are two for each inbound, and most Dataplanes have few.
	maxDroppedCounters = 2000
	// maxDropped is more records than an Envoy makes between two readings.
	maxDropped = 1 << 40
)

// readDropped reads how many records have not come, which are counted without a source. An agent that has died, and whose Envoy has not, may have
// counted them before: twice is better than not at all.
func (c *Counter) readDropped(ctx context.Context, e Envoy) error {
	page, err := e.Get(ctx, droppedPath)
	if err != nil {
		return err
	}
	values, err := parseDropped(page)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	lost := map[key]uint64{}
	for counter, now := range values {
		before := c.dropped[counter]
		if now < before {
			before = 0 // it is another Envoy
		}
		if now-before > maxDropped {
			return fmt.Errorf("%s: %d after %d: more than an Envoy makes", counter, now, before)
		}
		k, _ := keyOf(counter) // parseDropped has checked it
		lost[k] += now - before
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

// parseDropped reads lines such as "access_logs.open_telemetry_access_log.requests.inbound_8080.logs_dropped: 12".
func parseDropped(page []byte) (map[string]uint64, error) {
	all := map[string]uint64{}
	for line := range bytes.Lines(page) {
		text := strings.TrimSpace(string(line))
		if text == "" {
			continue
		}
		counter, number, ok := strings.Cut(text, ": ")
		value, err := strconv.ParseUint(number, 10, 64)
		if !ok || err != nil {
			return nil, fmt.Errorf("envoy says %.200q: must be a counter and a number", text)
		}
		if _, ok := keyOf(counter); !ok {
			return nil, fmt.Errorf("envoy says %.200q, which is no counter of records", text)
		}
		if all[counter] = value; len(all) > maxDroppedCounters {
			return nil, fmt.Errorf("envoy has more than %d counters of records", maxDroppedCounters)
		}
	}
	return all, nil
}

// keyOf returns what a counter counts.
func keyOf(counter string) (key, bool) {
	name, ours := strings.CutPrefix(counter, mesh.RecordsStats)
	name, dropped := strings.CutSuffix(name, "."+mesh.RecordsDropped)
	log, port, tagged := strings.Cut(name, "."+mesh.InboundStats)
	k, known := logs[log]
	if !tagged {
		return k, ours && dropped && known && log == mesh.RecordsNoInbound
	}
	n, err := strconv.ParseUint(port, 10, 16)
	k.port = uint32(n)
	return k, ours && dropped && known && err == nil
}
