package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
)

// line of the table: one figure for all subjects.
type line struct {
	Row, Topology, Figure string
	// By subject, over all rounds and changes, in seconds and bytes.
	Medians, P99 map[string]float64
}

// lines returns the lines of the table, by row, without figures that are only for plots.
func lines(f *figures) []*line {
	var all []*line
	found := map[key]*line{}
	for _, k := range f.keys {
		if strings.HasPrefix(k.figure, strings.TrimSuffix(figureSecond, "%d")) {
			continue
		}
		at := k
		at.subject = ""
		l := found[at]
		if l == nil {
			l = &line{Row: k.row, Topology: k.topology.String(), Figure: k.figure, Medians: map[string]float64{}, P99: map[string]float64{}}
			found[at] = l
			all = append(all, l)
		}
		l.Medians[k.subject], l.P99[k.subject] = f.median(k), f.quantile(k, 0.99)
	}
	slices.SortStableFunc(all, func(a, b *line) int { return cmp.Compare(a.Row, b.Row) })
	return all
}

// inWords formats a figure with its unit.
func inWords(figure string, v float64) string {
	base, _, _ := strings.Cut(figure, ",")
	switch base {
	case figureRefused, figureLost, figureResponses, figureResources:
		return fmt.Sprintf("%.0f", v)
	case figureShare:
		return fmt.Sprintf("%.2f %%", 100*v)
	case figureBytes, figureEmpty, figureStart, figureMiddle, figureEnd:
		return fmt.Sprintf("%.2f MB", v/1e6)
	case figurePerProxy:
		return fmt.Sprintf("%.1f KB", v/1e3)
	}
	if v >= 1 {
		return fmt.Sprintf("%.2f s", v)
	}
	return fmt.Sprintf("%.2f ms", 1e3*v)
}

func report(o options, f *figures) error {
	text := &strings.Builder{}
	fmt.Fprintf(text, "Medians of %d rounds, subjects in turn, on a machine with %d processors that may do other work: compare within\n", o.rounds, runtime.NumCPU())
	fmt.Fprintf(text, "a line, not between runs. Topology: proxies × services of %d endpoints.\n\n", endpointsPerService)
	row := func(columns ...string) { fmt.Fprintln(text, "| "+strings.Join(columns, "\t| ")+"\t|") }
	subjects := allSubjects()
	row(append([]string{"row", "topology", "figure"}, subjects...)...)
	row(strings.Split(strings.Repeat("--- ", len(subjects)+3)[:4*(len(subjects)+3)-1], " ")...)
	table := lines(f)
	for _, l := range table {
		columns := []string{l.Row, l.Topology, l.Figure}
		for _, s := range subjects {
			cell := "-"
			if v, measured := l.Medians[s]; measured {
				cell = inWords(l.Figure, v)
			}
			columns = append(columns, cell)
		}
		row(columns...)
	}
	fmt.Fprintln(text, "\nGoals, of sonde-builder where nothing else is said:")
	judged := verdicts(o, f)
	slices.SortStableFunc(judged, func(a, b verdict) int { return cmp.Compare(a.Row, b.Row) })
	for _, v := range judged {
		word := "met"
		if !v.Met {
			word = "MISSED"
		}
		fmt.Fprintf(text, "- %s, %s: %s: %.3g, at most %.3g: %s\n", v.Row, v.Topology, v.What, v.Got, v.Most, word)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', 0)
	_, err := io.WriteString(w, text.String())
	if err = errors.Join(err, w.Flush()); err != nil {
		return fmt.Errorf("write the figures: %w", err)
	}
	if o.plots != "" {
		if err := plots(o, f); err != nil {
			return fmt.Errorf("write plots: %w", err)
		}
	}
	if o.json == "" {
		return nil
	}
	data, err := json.MarshalIndent(map[string]any{
		"rounds": o.rounds, "changes": o.changes, "processors": runtime.NumCPU(), "figures": table, "goals": judged,
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.json, append(data, '\n'), 0o644)
}
