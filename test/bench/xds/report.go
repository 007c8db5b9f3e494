package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/test/bench/rig"
)

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
	r := rig.NewReport(o.rounds, fmt.Sprintf("Topology: proxies × services of %d endpoints.", endpointsPerService))
	subjects := allSubjects()
	r.Head(append([]string{"row", "topology", "figure"}, subjects...)...)
	lines := slices.Clone(f.keys) // of each figure, without the subject
	for i := range lines {
		lines[i].subject = ""
	}
	slices.SortStableFunc(lines, func(a, b key) int { return cmp.Compare(a.row, b.row) })
	told := map[key]bool{}
	for _, l := range lines {
		if told[l] {
			continue
		}
		told[l] = true
		columns := []string{l.row, l.topology.String(), l.figure}
		for _, s := range subjects {
			k, cell := l, "-"
			if k.subject = s; len(f.values[k]) > 0 {
				cell = inWords(l.figure, f.median(k))
			}
			columns = append(columns, cell)
		}
		r.Row(columns...)
	}
	r.Say("\nGoals, of sonde-builder where nothing else is said:")
	judged := verdicts(o, f)
	slices.SortStableFunc(judged, func(a, b verdict) int { return cmp.Compare(a.row, b.row) })
	for _, v := range judged {
		r.Goal(fmt.Sprintf("%s, %s: %s", v.row, v.topology, v.what), v.got, v.most)
	}
	return r.Print()
}
