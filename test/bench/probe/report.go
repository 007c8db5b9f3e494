package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Goals of sonde-dp, in MiB and as ratios to the naive design.
const (
	goalRestAnon, goalRestRSS   = 6, 20
	goalAfterAnon, goalAfterRSS = 10, 24
	goalCPU, goalP99            = 1.0, 1.0
)

// report prints the tables and the goals, and writes the figures as JSON if the options say so.
func report(o options, cpus int, cells []*cell, sizes []size) error {
	w := &strings.Builder{}
	fmt.Fprintf(w, "Medians of %d rounds of %d probes, subjects in turn, on a machine with %d processors that may do other work:\ncompare within a row's kind, not between runs. Times in microseconds.\n\n", o.rounds, o.probes, cpus)
	found := map[string]*cell{}
	for _, c := range cells {
		found[cellKey(c.Kind, c.AtOnce, c.Subject)] = c
	}
	speedTable(w, cells, found)
	sizeTable(w, sizes)
	goals(w, o, found, sizes)
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', 0)
	_, err := io.WriteString(out, w.String())
	if err = errors.Join(err, out.Flush()); err != nil {
		return fmt.Errorf("write the figures: %w", err)
	}
	if o.json == "" {
		return nil
	}
	data, err := json.MarshalIndent(map[string]any{"options": map[string]int{"rounds": o.rounds, "probes": o.probes, "entries": o.entries, "long": o.million}, "processors": cpus, "speed": cells, "memory": sizes}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.json, append(data, '\n'), 0o600)
}

func cellKey(kind string, atOnce int, subject string) string {
	return fmt.Sprint(kind, atOnce, subject)
}

// row writes a row of a table. The tabwriter aligns its columns.
func row(w *strings.Builder, columns ...string) {
	fmt.Fprintln(w, "| "+strings.Join(columns, "\t| ")+"\t|")
}

func speedTable(w *strings.Builder, cells []*cell, found map[string]*cell) {
	row(w, "kind", "at once", "subject", "CPU", "of naive", "p50", "p99", "per s", "allocs", "KiB", "TIME_WAIT")
	row(w, "---", "---", "---", "---", "---", "---", "---", "---", "---", "---", "---")
	for _, c := range cells {
		cpu, ratio, allocs, bytes := "-", "-", "-", "-"
		if c.Subject != subjectDirect { // its CPU would be the client's
			cpu = fmt.Sprintf("%.0f", c.CPU)
			ratio = fmt.Sprintf("%.2f", c.CPU/found[cellKey(c.Kind, c.AtOnce, roleNaive)].CPU)
		}
		if c.Allocs > 0 {
			allocs, bytes = fmt.Sprintf("%.0f", c.Allocs), fmt.Sprintf("%.1f", c.Bytes/1024)
		}
		row(w, c.Kind, strconv.Itoa(c.AtOnce), c.Subject, cpu, ratio, fmt.Sprintf("%.0f", c.P50), fmt.Sprintf("%.0f", c.P99),
			fmt.Sprintf("%.0f", c.PerSecond), allocs, bytes, fmt.Sprintf("%.0f", c.TimeWait))
	}
	fmt.Fprintln(w, "\nraw: bytes between connections. naive: httputil.ReverseProxy with the kubelet's transport, which keeps no connections, and a gRPC")
	fmt.Fprintln(w, "client per probe. handler: sonde-dp without its guard. TIME_WAIT: connections per 1,000 probes.")
	fmt.Fprintln(w)
}

func sizeTable(w *strings.Builder, sizes []size) {
	row(w, "memory, MiB", "probes in the table", "RssAnon at rest", "VmRSS at rest", "probes made", "RssAnon", "VmRSS")
	row(w, "---", "---", "---", "---", "---", "---", "---")
	mib := func(v float64) string {
		if v == 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f", v)
	}
	for _, s := range sizes {
		row(w, s.Subject, strconv.Itoa(s.Entries), mib(s.Rest.RssAnon), mib(s.Rest.VmRSS), strconv.Itoa(s.Probes), mib(s.After.RssAnon), mib(s.After.VmRSS))
	}
}

func goals(w *strings.Builder, o options, found map[string]*cell, sizes []size) {
	fmt.Fprintln(w, "\nGoals:")
	goal := func(what string, got, most float64) {
		verdict := "met"
		if got > most {
			verdict = "MISSED"
		}
		fmt.Fprintf(w, "- %s: %.2f, at most %.2f: %s\n", what, got, most, verdict)
	}
	for _, n := range atOnce {
		sonde, naive := found[cellKey(kindHTTP, n, subjectSonde)], found[cellKey(kindHTTP, n, roleNaive)]
		goal(fmt.Sprintf("HTTP CPU of naive, %d at once", n), sonde.CPU/naive.CPU, goalCPU)
		goal(fmt.Sprintf("HTTP p99 of naive, %d at once", n), sonde.P99/naive.P99, goalP99)
		goal(fmt.Sprintf("TCP connections in TIME_WAIT, %d at once", n), found[cellKey(kindTCP, n, subjectSonde)].TimeWait, 0)
	}
	goal("RssAnon at rest, MiB", sizes[0].Rest.RssAnon, goalRestAnon)
	goal("VmRSS at rest, MiB", sizes[0].Rest.VmRSS, goalRestRSS)
	if o.million > 0 {
		goal("RssAnon after many probes, MiB", sizes[1].After.RssAnon, goalAfterAnon)
		goal("VmRSS after many probes, MiB", sizes[1].After.VmRSS, goalAfterRSS)
	}
}
