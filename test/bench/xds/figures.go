package main

import "slices"

// What is measured, in seconds and bytes.
const (
	figureWall     = "last ACK"
	figureP50      = "p50"
	figureP99      = "p99"
	figureSeen     = "first response"
	figureCPU      = "CPU"
	figureRefused  = "refused"
	figureBytes    = "bytes"
	figureEmpty    = "memory without proxies"
	figurePerProxy = "memory per proxy"
)

type key struct {
	row     string
	world   world
	subject string
	figure  string
}

// figures are all that was measured, in the order in which it was.
type figures struct {
	keys   []key
	values map[key][]float64
}

func newFigures() *figures { return &figures{values: map[key][]float64{}} }

func (f *figures) add(k key, value float64) {
	if _, known := f.values[k]; !known {
		f.keys = append(f.keys, k)
	}
	f.values[k] = append(f.values[k], value)
}

// median is false if there is none.
func (f *figures) median(k key) (float64, bool) {
	values := slices.Sorted(slices.Values(f.values[k]))
	if len(values) == 0 {
		return 0, false
	}
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2, true
}
