package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

const plotWidth, plotHeight = 18 * vg.Centimeter, 10 * vg.Centimeter

// plots writes an SVG for each measured row that has a plot.
func plots(o options, f *figures) error {
	if err := os.MkdirAll(o.plots, 0o755); err != nil {
		return err
	}
	few, many, crowded := topologies(o)
	return errors.Join(
		plotChanges(o, f, rowChange, few), plotChanges(o, f, rowMany, many),
		plotMemory(o, f, many),
		plotConnect(o, f, few), plotConnect(o, f, crowded),
	)
}

// plotChanges plots the share of all changes that had reached the last proxy after each time.
func plotChanges(o options, f *figures, row string, w topology) error {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("One endpoint change, %s", w)
	p.X.Label.Text, p.Y.Label.Text = "milliseconds to the last ACK", "share of changes"
	p.X.Min, p.Legend.Left = 0, false
	var curves []any
	for _, s := range allSubjects() {
		values := slices.Sorted(slices.Values(f.values[key{row, w, s, figureWall}]))
		if len(values) == 0 {
			continue
		}
		points := make(plotter.XYs, len(values))
		for i, v := range values {
			points[i] = plotter.XY{X: 1e3 * v, Y: float64(i+1) / float64(len(values))}
		}
		curves = append(curves, s, points)
	}
	return save(o, p, curves, fmt.Sprintf("xds-change-%d-%d.svg", w.Proxies, w.Services))
}

func plotMemory(o options, f *figures, w topology) error {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("%d changes per second, %s", perSecond, w)
	p.X.Label.Text, p.Y.Label.Text = "seconds", "MB in use"
	p.Y.Min = 0
	var curves []any
	for _, s := range allSubjects() {
		var points plotter.XYs
		for second := 0; ; second++ {
			k := key{rowSteady, w, s, fmt.Sprintf(figureSecond, second)}
			if len(f.values[k]) == 0 {
				break
			}
			points = append(points, plotter.XY{X: float64(second), Y: f.median(k) / 1e6})
		}
		if len(points) > 0 {
			curves = append(curves, s, points)
		}
	}
	return save(o, p, curves, fmt.Sprintf("xds-memory-%d-%d.svg", w.Proxies, w.Services))
}

// save writes a plot, unless it has no curves.
func save(o options, p *plot.Plot, curves []any, name string) error {
	if len(curves) == 0 {
		return nil
	}
	if err := plotutil.AddLines(p, curves...); err != nil {
		return err
	}
	return p.Save(plotWidth, plotHeight, filepath.Join(o.plots, name))
}

func plotConnect(o options, f *figures, w topology) error {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("All connect at once, %s", w)
	p.Y.Label.Text = "seconds to the last ACK"
	p.Y.Min = 0
	var names []string
	var values plotter.Values
	for _, s := range allSubjects() {
		if k := (key{rowConnect, w, s, figureWall}); len(f.values[k]) > 0 {
			names, values = append(names, s), append(values, f.median(k))
		}
	}
	if len(values) == 0 {
		return nil
	}
	bars, err := plotter.NewBarChart(values, 2*vg.Centimeter)
	if err != nil {
		return err
	}
	bars.Color = plotutil.Color(2)
	p.Add(bars)
	p.NominalX(names...)
	return p.Save(plotWidth, plotHeight, filepath.Join(o.plots, fmt.Sprintf("xds-connect-%d-%d.svg", w.Proxies, w.Services)))
}
