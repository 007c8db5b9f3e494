package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// expensive is how many packages the summary names.
const expensive = 5

// entry is one run of a package.
type entry struct {
	directory string
	took      time.Duration
}

// judge returns an error if the package took far more than its budget.
func (e entry) judge() error {
	if e.took <= tolerated*budget {
		return nil
	}
	return fmt.Errorf("%s used %.1f s of CPU time, over %d times its budget of %s: make its tests cheaper, or move them to test/real",
		e.directory, e.took.Seconds(), tolerated, budget)
}

// append adds a line to a log that other processes add to, too.
func (e entry) append(log string) (err error) {
	file, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	_, err = fmt.Fprintf(file, "%.3f %s\n", e.took.Seconds(), e.directory)
	return err
}

// read returns the runs in a log. Those of one package are one. A log that was not begun has none.
func read(log string) ([]entry, error) {
	data, err := os.ReadFile(log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	took := map[string]time.Duration{}
	for line := range strings.Lines(string(data)) {
		number, directory, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		seconds, err := strconv.ParseFloat(number, 64)
		if err != nil || directory == "" {
			return nil, fmt.Errorf("read %s: invalid line %q, want seconds and a directory", log, line)
		}
		took[directory] += time.Duration(seconds * float64(time.Second))
	}
	var all []entry
	for directory, t := range took {
		all = append(all, entry{directory, t})
	}
	slices.SortFunc(all, func(a, b entry) int {
		return cmp.Or(cmp.Compare(b.took, a.took), cmp.Compare(a.directory, b.directory))
	})
	return all, nil
}

// summary of runs, the longest first.
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
		case e.took > tolerated*budget:
			fmt.Fprintf(&b, "%8.1f s  %s, over %d times the budget of %s: failed\n", e.took.Seconds(), e.directory, tolerated, budget)
		case e.took > budget:
			fmt.Fprintf(&b, "%8.1f s  %s, over the budget of %s\n", e.took.Seconds(), e.directory, budget)
		case i < expensive:
			fmt.Fprintf(&b, "%8.1f s  %s\n", e.took.Seconds(), e.directory)
		}
	}
	return b.String()
}
