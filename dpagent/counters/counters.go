// Package counters reads Envoy's counters and computes how much they have grown.
package counters

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// maxGrowth is more than Envoy can count between two readings.
const maxGrowth = 1 << 40

// Values are counters by their names in Envoy.
type Values map[string]uint64

// Parse reads a page of Envoy's /stats, with lines such as "cluster.inbound_8080.upstream_cx_total: 12". It returns an
// error for any other line, and if the number of counters exceeds most.
func Parse(page []byte, most int) (Values, error) {
	all := Values{}
	for line := range bytes.Lines(page) {
		text := strings.TrimSpace(string(line))
		if text == "" {
			continue
		}
		counter, number, ok := strings.Cut(text, ": ")
		value, err := strconv.ParseUint(number, 10, 64)
		if !ok || err != nil {
			return nil, fmt.Errorf("envoy's statistics: %.200q: must be a counter and a number", text)
		}
		if all[counter] = value; len(all) > most {
			return nil, fmt.Errorf("envoy has more than %d counters", most)
		}
	}
	return all, nil
}

// Since returns how much each counter has grown since before. A smaller counter belongs to a restarted Envoy, which
// began at 0. Since returns an error if the growth exceeds maxGrowth.
func (v Values) Since(before Values) (Values, error) {
	grown := Values{}
	for counter, now := range v {
		was := before[counter]
		if now < was {
			was = 0
		}
		if now-was > maxGrowth {
			return nil, fmt.Errorf("%s: %d after %d: growth is too large", counter, now, was)
		}
		grown[counter] = now - was
	}
	return grown, nil
}
