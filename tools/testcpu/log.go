package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// expensive is the number of packages in the summary.
const expensive = 5

// entry is one run of a package.
type entry struct {
	directory string
	took      time.Duration
	// slowness of the machine at that time, 1 if it was not measured because the package kept its budget anyway.
	slowness float64
}

// over reports whether the package took more than this many budgets, converted to the budget's machine.
func (e entry) over(budgets float64) bool {
	return e.took.Seconds()/e.slowness > budgets*budget.Seconds()
}

// String formats the CPU time, and the slowness if it was measured.
func (e entry) String() string {
	if e.slowness == 1 {
		return fmt.Sprintf("%.1f s", e.took.Seconds())
	}
	return fmt.Sprintf("%.1f s at a slowness of %.1f", e.took.Seconds(), e.slowness)
}

// judge returns an error if the package took far more than its budget.
func (e entry) judge() error {
	if !e.over(tolerated) {
		return nil
	}
	return fmt.Errorf("%s used %s of CPU time, over %d times its budget of %s: make its tests cheaper, or move them to test/real",
		e.directory, e, tolerated, budget)
}

// append appends a line to a log that other processes also append to.
func (e entry) append(log string) (err error) {
	file, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	_, err = fmt.Fprintf(file, "%.3f %.2f %s\n", e.took.Seconds(), e.slowness, e.directory)
	return err
}

// read returns the runs in a log. It merges the runs of a package, with their maximum slowness. A missing log has no
// runs.
func read(log string) ([]entry, error) {
	data, err := os.ReadFile(log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	packages := map[string]entry{}
	for line := range strings.Lines(string(data)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
		if len(fields) < 3 {
			return nil, fmt.Errorf("read %s: invalid line %q, want seconds, the slowness and a directory", log, line)
		}
		seconds, err := strconv.ParseFloat(fields[0], 64)
		slowness, err2 := strconv.ParseFloat(fields[1], 64)
		if err := errors.Join(err, err2); err != nil || slowness <= 0 {
			return nil, fmt.Errorf("read %s: invalid line %q, want seconds, the slowness and a directory", log, line)
		}
		e := packages[fields[2]]
		packages[fields[2]] = entry{
			fields[2], e.took + time.Duration(seconds*float64(time.Second)), max(e.slowness, slowness),
		}
	}
	all := slices.Collect(maps.Values(packages))
	slices.SortFunc(all, func(a, b entry) int {
		return cmp.Or(cmp.Compare(b.took, a.took), cmp.Compare(a.directory, b.directory))
	})
	return all, nil
}

// summary summarises runs, the longest first.
func summary(all []entry) string {
	if len(all) == 0 {
		return "CPU time: no test ran, all results are cached\n"
	}
	var b strings.Builder
	var sum time.Duration
	for _, e := range all {
		sum += e.took
	}
	fmt.Fprintf(&b, "CPU time: %.1f s in %d packages\n", sum.Seconds(), len(all))
	for i, e := range all {
		switch {
		case e.over(tolerated):
			fmt.Fprintf(&b, "%8.1f s  %s, over %d times the budget of %s: failed (slowness %.1f)\n", e.took.Seconds(), e.directory, tolerated, budget, e.slowness)
		case e.over(1):
			fmt.Fprintf(&b, "%8.1f s  %s, over the budget of %s (slowness %.1f)\n", e.took.Seconds(), e.directory, budget, e.slowness)
		case i < expensive:
			fmt.Fprintf(&b, "%8.1f s  %s\n", e.took.Seconds(), e.directory)
		}
	}
	return b.String()
}
