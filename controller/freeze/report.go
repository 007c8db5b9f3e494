package freeze

import (
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/controller/events"
)

// report logs the differences between two verdicts, and records an event for each changed group and zone. The caller
// holds mu.
func (f *Freeze) report(before, now *Verdict) {
	suffix := ""
	if f.mode == DryRun {
		suffix = " (dry run: nothing is frozen)"
	}
	for _, z := range now.Zones {
		old, was := before.zone(z.Name)
		switch {
		case z.Kept == All && (!was || old.Kept != All):
			f.event("Frozen", z.Name,
				fmt.Sprintf("%s is frozen by %s: endpoints that only the node controller takes away stay%s",
					zoneText(z.Name), by(z.By), suffix), false)
		case z.Kept != All && (!was || old.Kept == All):
			f.event("Thawing", z.Name, fmt.Sprintf("%s thaws, a tenth of the endpoints at a time%s", zoneText(z.Name), suffix),
				true)
		}
	}
	for _, z := range before.Zones {
		if _, is := now.zone(z.Name); !is {
			f.event("Thawed", z.Name, zoneText(z.Name)+" is thawed"+suffix, true)
		}
	}
	for _, l := range now.Lost {
		if !slices.ContainsFunc(before.Lost, l.sameGroup) {
			f.event(reasons[l.Kind].lost, l.Zone,
				fmt.Sprintf("most %s of %s are not seen (%s): no restart is granted, and no record of a silent proxy is removed%s",
					l.Kind, groupText(l.Zone), l.Cause, suffix), false)
		}
	}
	for _, l := range before.Lost {
		if !slices.ContainsFunc(now.Lost, l.sameGroup) {
			f.event(reasons[l.Kind].seen, l.Zone, fmt.Sprintf("most %s of %s are seen again, or an operator has thawed it%s",
				l.Kind, groupText(l.Zone), suffix), true)
		}
	}
}

var reasons = map[Kind]struct{ lost, seen string }{Nodes: {"NodesLost", "NodesSeen"},
	Proxies: {"ProxiesLost", "ProxiesSeen"}}

func (l Loss) sameGroup(o Loss) bool { return l.Kind == o.Kind && l.Zone == o.Zone }

func by(k Kind) string {
	if k == Operator {
		return "an operator"
	}
	return "the silence of most of its nodes, or of most nodes of the mesh"
}

// event records an event about a zone, "" for the whole mesh. Events of one zone with one reason form a series.
func (f *Freeze) event(reason, zone, note string, normal bool) {
	log := f.o.Logger.Warn
	if normal {
		log = f.o.Logger.Info
	}
	log("freeze", "reason", reason, "zone", zone, "note", note)
	f.o.Record(events.Event{
		Kind: "Lease", APIVersion: "coordination.k8s.io/v1", Namespace: f.o.Lease.Namespace, Name: f.o.Lease.Name,
		FieldPath: "zones{" + zone + "}",
		Reason:    reason, Action: "Freeze", Note: note, Normal: normal,
	})
}

// collector computes the metric from the current verdict.
type collector struct{ freeze *Freeze }

var frozenDesc = prometheus.NewDesc("sonde_frozen",
	"1 for each zone that is frozen or thaws (cause nodes or operator), and for each zone most of whose nodes or proxies are silent (nodes or proxies); zone is empty for the whole mesh, and for nodes without a zone.",
	[]string{"zone", "cause"}, nil)

// Describe implements prometheus.Collector.
func (c collector) Describe(to chan<- *prometheus.Desc) { to <- frozenDesc }

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	type series struct {
		zone  string
		cause Kind
	}
	v, all := c.freeze.Verdict(), map[series]bool{}
	for _, z := range v.Zones {
		all[series{z.Name, z.By}] = true
	}
	for _, l := range v.Lost {
		all[series{l.Zone, l.Kind}] = true
	}
	for s := range all {
		to <- prometheus.MustNewConstMetric(frozenDesc, prometheus.GaugeValue, 1, s.zone, string(s.cause))
	}
}
