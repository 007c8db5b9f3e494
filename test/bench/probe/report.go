package main

import (
	"fmt"
	"strconv"

	"github.com/sonde-mesh/sonde/test/bench/rig"
)

// Goals of sonde-dp, in MiB and as ratios to the naive design.
const (
	goalRestAnon, goalRestRSS   = 6, 20
	goalAfterAnon, goalAfterRSS = 10, 24
	goalCPU, goalP99            = 1.0, 1.0
)

// report prints the tables and the goals.
func report(o options, cells []*cell, sizes []size) error {
	r := rig.NewReport(o.rounds, fmt.Sprintf("Each has %d probes. Times in microseconds.", o.probes))
	found := map[string]*cell{}
	for _, c := range cells {
		found[cellKey(c.Kind, c.AtOnce, c.Subject)] = c
	}
	speedTable(r, cells, found)
	sizeTable(r, sizes)
	goals(r, o, found, sizes)
	return r.Print()
}

func cellKey(kind string, atOnce int, subject string) string {
	return fmt.Sprint(kind, atOnce, subject)
}

func speedTable(r *rig.Report, cells []*cell, found map[string]*cell) {
	r.Head("kind", "at once", "subject", "CPU", "of naive", "p50", "p99", "per s", "allocs", "KiB", "TIME_WAIT")
	for _, c := range cells {
		cpu, ratio, allocs, bytes := "-", "-", "-", "-"
		if c.Subject != subjectDirect { // its CPU would be the client's
			cpu = fmt.Sprintf("%.0f", c.CPU)
			ratio = fmt.Sprintf("%.2f", c.CPU/found[cellKey(c.Kind, c.AtOnce, roleNaive)].CPU)
		}
		if c.Allocs > 0 {
			allocs, bytes = fmt.Sprintf("%.0f", c.Allocs), fmt.Sprintf("%.1f", c.Bytes/1024)
		}
		r.Row(c.Kind, strconv.Itoa(c.AtOnce), c.Subject, cpu, ratio, fmt.Sprintf("%.0f", c.P50), fmt.Sprintf("%.0f", c.P99),
			fmt.Sprintf("%.0f", c.PerSecond), allocs, bytes, fmt.Sprintf("%.0f", c.TimeWait))
	}
	r.Say("\nraw: bytes between connections. naive: httputil.ReverseProxy with the kubelet's transport, which keeps no connections, and a gRPC")
	r.Say("client per probe. handler: sonde-dp without its guard. TIME_WAIT: connections per 1,000 probes.\n")
}

func sizeTable(r *rig.Report, sizes []size) {
	r.Head("memory, MiB", "probes in the table", "RssAnon at rest", "VmRSS at rest", "probes made", "RssAnon", "VmRSS")
	mib := func(v float64) string {
		if v == 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f", v)
	}
	for _, s := range sizes {
		r.Row(s.Subject, strconv.Itoa(s.Entries), mib(s.Rest.RssAnon), mib(s.Rest.VmRSS), strconv.Itoa(s.Probes), mib(s.After.RssAnon), mib(s.After.VmRSS))
	}
}

func goals(r *rig.Report, o options, found map[string]*cell, sizes []size) {
	r.Say("\nGoals:")
	for _, n := range atOnce {
		sonde, naive := found[cellKey(kindHTTP, n, subjectSonde)], found[cellKey(kindHTTP, n, roleNaive)]
		r.Goal(fmt.Sprintf("HTTP CPU of naive, %d at once", n), sonde.CPU/naive.CPU, goalCPU)
		r.Goal(fmt.Sprintf("HTTP p99 of naive, %d at once", n), sonde.P99/naive.P99, goalP99)
		r.Goal(fmt.Sprintf("TCP connections in TIME_WAIT, %d at once", n), found[cellKey(kindTCP, n, subjectSonde)].TimeWait, 0)
	}
	r.Goal("RssAnon at rest, MiB", sizes[0].Rest.RssAnon, goalRestAnon)
	r.Goal("VmRSS at rest, MiB", sizes[0].Rest.VmRSS, goalRestRSS)
	if o.million > 0 {
		r.Goal("RssAnon after many probes, MiB", sizes[1].After.RssAnon, goalAfterAnon)
		r.Goal("VmRSS after many probes, MiB", sizes[1].After.VmRSS, goalAfterRSS)
	}
}
