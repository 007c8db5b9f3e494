package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
)

// Main runs a benchmark until it ends or is told to, and ends the process.
func Main(name string, measure func(ctx context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := measure(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench/%s: %v\n", name, err)
		os.Exit(1)
	}
}

// Report is what a benchmark tells in the end: tables as in docs/benchmarks.md, and goals.
type Report struct{ text strings.Builder }

// NewReport returns a Report that says how the figures were made.
func NewReport(rounds int, how string) *Report {
	r := &Report{}
	r.Say("Medians of %d rounds, subjects in turn, on a machine with %d processors that may do other work:", rounds, runtime.NumCPU())
	r.Say("compare within a table, not between runs. %s\n", how)
	return r
}

// Say writes a line.
func (r *Report) Say(format string, args ...any) { fmt.Fprintf(&r.text, format+"\n", args...) }

// Head begins a table.
func (r *Report) Head(columns ...string) {
	r.Row(columns...)
	r.Row(slices.Repeat([]string{"---"}, len(columns))...)
}

// Row writes a row of a table.
func (r *Report) Row(columns ...string) { r.Say("| %s\t|", strings.Join(columns, "\t| ")) }

// Goal says whether a figure is as low as it should be.
func (r *Report) Goal(what string, got, most float64) {
	verdict := "met"
	if got > most {
		verdict = "MISSED"
	}
	r.Say("- %s: %.3g, at most %.3g: %s", what, got, most, verdict)
}

// Print prints it, with the columns of tables aligned.
func (r *Report) Print() error {
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', 0)
	_, err := io.WriteString(out, r.text.String())
	if err = errors.Join(err, out.Flush()); err != nil {
		return fmt.Errorf("write the figures: %w", err)
	}
	return nil
}

// Median returns 0 if there are no values.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}
