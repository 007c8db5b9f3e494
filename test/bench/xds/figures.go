package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/test/bench/rig"
)

// Names of the figures, which are in seconds and bytes.
const (
	figureWall      = "last ACK"
	figureP50       = "p50"
	figureP99       = "p99"
	figureSeen      = "first response"
	figureCPU       = "CPU"
	figureRefused   = "refused"
	figureLost      = "lost"
	figureBytes     = "bytes"
	figureEmpty     = "memory without proxies"
	figureResponses = "responses"
	figureResources = "resources sent"
	figureShare     = "share of a core"
	figureStart     = "memory at the start"
	figureMiddle    = "memory in the middle"
	figureEnd       = "memory at the end"
	figurePerProxy  = "memory per proxy"
	// Endings of figures' names.
	figureAll  = ", all see it"
	figureWith = ", odd ones there"
)

type key struct {
	row      string
	topology topology
	subject  string
	figure   string
}

// figures are everything that was measured, in that order.
type figures struct {
	keys   []key
	log    []key
	values map[key][]float64
}

func newFigures() *figures { return &figures{values: map[key][]float64{}} }

func (f *figures) add(k key, value float64) {
	if _, known := f.values[k]; !known {
		f.keys = append(f.keys, k)
	}
	f.log = append(f.log, k)
	f.values[k] = append(f.values[k], value)
}

func (f *figures) median(k key) float64 { return rig.Median(f.values[k]) }

func (f *figures) quantile(k key, p float64) float64 {
	return quantile(slices.Sorted(slices.Values(f.values[k])), p)
}

// since describes the medians of all figures after the first known ones.
func (f *figures) since(known int) string {
	var parts []string
	for _, k := range f.log[known:] {
		m := f.median(k)
		if part := fmt.Sprintf("%s %s %.4g", k.row, k.figure, m); !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ", ")
}
