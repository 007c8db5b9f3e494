package monitoring_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/test/monitoring"
)

// envoyLabels are the labels of Envoy's metrics that dashboards use.
var envoyLabels = []string{"envoy_cluster_name", "envoy_response_code_class"}

var (
	envoyRow  = regexp.MustCompile("(?m)^\\| `(envoy_\\w+)` \\|")
	legend    = regexp.MustCompile(`\{\{(\w+)\}\}`)
	variable  = regexp.MustCompile(`\$\{?(\w+)\}?`)
	ofAlerts  = []string{"alertname", "alertstate", "severity", "mesh", "service", "type", "zone"}
	labelsOf  = regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`)
	builtinIn = []string{"__rate_interval", "__all"}
)

func dashboards(t *testing.T) map[string]monitoring.Dashboard {
	t.Helper()
	all, err := monitoring.Dashboards()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := slices.Sorted(maps.Keys(all)), []string{"control-plane", "mesh", "probes", "restarts"}; !slices.Equal(got, want) {
		t.Fatalf("dashboards %q, want %q", got, want)
	}
	return all
}

// TestQueriesOfDashboards looks up the metrics and labels of all queries, legends and variables, as TestMetricsExist
// does for alerts.
func TestQueriesOfDashboards(t *testing.T) {
	known := knownMetrics(t)
	known["ALERTS"] = ofAlerts
	for _, label := range envoyLabels {
		known[label] = nil // it looks like a metric
	}
	page := read(t, "docs/metrics.md")
	for name, d := range dashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				where := fmt.Sprintf("%s: %s %s", name, p.Title, target.RefID)
				addEnvoyMetrics(known, page, target.Expr)
				var used []string
				for _, match := range legend.FindAllStringSubmatch(target.LegendFormat, -1) {
					used = append(used, match[1])
				}
				checkQuery(t, known, where, target.Expr, used)
			}
		}
		for _, v := range d.Templating.List {
			if v.Type == "datasource" {
				continue
			}
			match := labelsOf.FindStringSubmatch(v.Query)
			if match == nil || known[match[1]] == nil || !slices.Contains(slices.Concat(known[match[1]], ofTargets), match[2]) {
				t.Errorf("%s: variable %s has the query %s, want label_values of a metric and its label", name, v.Name, v.Query)
			}
		}
	}
}

// addEnvoyMetrics adds the metrics of Envoy in a query that the page of a pod has by default.
func addEnvoyMetrics(known map[string][]string, page, query string) {
	for _, match := range metricName.FindAllStringSubmatch(query, -1) {
		for _, prefix := range envoyRow.FindAllStringSubmatch(page, -1) {
			if strings.HasPrefix(match[1], prefix[1]) {
				known[match[1]] = envoyLabels
			}
		}
	}
}

// TestAlertsHavePanels requires panels with the metrics of each alert, which link to its runbook.
func TestAlertsHavePanels(t *testing.T) {
	queries, urls := map[string]string{}, map[string]string{} // by alert
	for name, d := range dashboards(t) {
		for _, p := range d.Panels {
			for _, link := range p.Links {
				for _, target := range p.Targets {
					queries[link.Title] += target.Expr + "\n"
				}
				if url := urls[link.Title]; url != "" && url != link.URL {
					t.Errorf("%s: %s links to %s and %s", name, link.Title, link.URL, url)
				}
				urls[link.Title] = link.URL
			}
		}
	}
	for _, alert := range alerts(t) {
		if urls[alert.Alert] != alert.Annotations["runbook_url"] {
			t.Errorf("no panel links to %s by its name %s, but to %q", alert.Annotations["runbook_url"], alert.Alert, urls[alert.Alert])
		}
		for _, match := range metricName.FindAllStringSubmatch(alert.Expr, -1) {
			if !regexp.MustCompile(match[1] + `\b`).MatchString(queries[alert.Alert]) {
				t.Errorf("no panel of %s has its metric %s", alert.Alert, match[1])
			}
		}
		delete(urls, alert.Alert)
	}
	if len(urls) > 0 {
		t.Errorf("panels link to unknown alerts: %v", urls)
	}
}

// TestDashboardsAreConsistent checks what Grafana would show wrongly without an error: names, variables and places.
func TestDashboardsAreConsistent(t *testing.T) {
	for name, d := range dashboards(t) {
		if d.UID != "sonde-"+name || !slices.Contains(d.Tags, "sonde") {
			t.Errorf("%s has the uid %q and the tags %q, want sonde-%s and sonde", name, d.UID, d.Tags, name)
		}
		variables := slices.Clone(builtinIn)
		for _, v := range d.Templating.List {
			variables = append(variables, v.Name)
		}
		titles, ids := map[string]bool{}, map[int]bool{}
		for i, p := range d.Panels {
			if titles[p.Title] || ids[p.ID] || p.Title == "" || p.Description == "" {
				t.Errorf("%s: panel %d %q needs an id and a title of its own, and a description", name, p.ID, p.Title)
			}
			titles[p.Title], ids[p.ID] = true, true
			checkPanel(t, name, p, variables)
			for _, other := range d.Panels[:i] {
				if overlap(p.GridPos, other.GridPos) {
					t.Errorf("%s: %s overlaps %s", name, p.Title, other.Title)
				}
			}
		}
	}
}

// checkPanel checks the data source, the variables and the width of a panel.
func checkPanel(t *testing.T, dashboard string, p monitoring.Panel, variables []string) {
	t.Helper()
	if p.Datasource == nil || p.Datasource.UID != "${datasource}" {
		t.Errorf("%s: %s has the data source %+v, want the one that the user chooses", dashboard, p.Title, p.Datasource)
	}
	for _, target := range p.Targets {
		for _, match := range variable.FindAllStringSubmatch(target.Expr, -1) {
			if !slices.Contains(variables, match[1]) {
				t.Errorf("%s: %s: unknown variable %s", dashboard, p.Title, match[0])
			}
		}
	}
	if p.GridPos.X+p.GridPos.W > 24 {
		t.Errorf("%s: %s ends at %d, want at most 24", dashboard, p.Title, p.GridPos.X+p.GridPos.W)
	}
}

func overlap(a, b monitoring.Place) bool {
	return a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H
}
