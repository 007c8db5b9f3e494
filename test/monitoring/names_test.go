package monitoring_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/test/monitoring"
)

// others are metrics of other programs that alerts and dashboards use, with their labels. make e2e-alerts gets the
// first from a real API server.
var others = map[string][]string{
	"apiserver_admission_webhook_rejection_count": {"name", "error_type"},
	"process_cpu_seconds_total":                   nil,
	"process_resident_memory_bytes":               nil,
}

// ofTargets are the labels that Prometheus adds for a target, as the guide configures it.
var ofTargets = []string{"instance", "namespace", "pod"}

var (
	row        = regexp.MustCompile("(?m)^\\| `(sonde_\\w+)` \\| (\\w+) \\| ([^|]*) \\|")
	metricName = regexp.MustCompile(`\b((?:sonde|apiserver|envoy|process|go)_\w+|ALERTS)(?:\{([^}]*)\})?`)
	matcher    = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"(?:[^"\\]|\\.)*"`)
	grouping   = regexp.MustCompile(`\b(?:by|without|on|ignoring)\s*\(([^)]*)\)`)
	template   = regexp.MustCompile(`\$labels\.(\w+)`)
	replaced   = regexp.MustCompile(`label_replace\((?s:.*),\s*"(\w+)", "\w+", "", ""\)`)
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := monitoring.Read(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func alerts(t *testing.T) []monitoring.Alert {
	t.Helper()
	all, err := monitoring.Alerts()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 12 {
		t.Errorf("%d alerts, the guide lists twelve", len(all))
	}
	return all
}

// TestMetricsExist looks up the alerts' metrics in docs/metrics.md, which is generated from the
// source.
func TestMetricsExist(t *testing.T) {
	known := knownMetrics(t)
	for _, alert := range alerts(t) {
		var used []string
		for _, match := range template.FindAllStringSubmatch(alert.Annotations["summary"]+alert.Annotations["description"]+alert.Labels["severity"], -1) {
			used = append(used, match[1])
		}
		checkQuery(t, known, alert.Alert, alert.Expr, used)
	}
}

// knownMetrics returns the labels of the metrics of docs/metrics.md, and of others.
func knownMetrics(t *testing.T) map[string][]string {
	t.Helper()
	known := maps.Clone(others)
	for _, match := range row.FindAllStringSubmatch(read(t, "docs/metrics.md"), -1) {
		name, labels := match[1], words(match[3])
		if match[2] == "histogram" {
			name, labels = name+"_bucket", append(labels, "le")
		}
		known[name] = labels
	}
	return known
}

// checkQuery fails the test unless the metrics of a query exist and have the labels that the query and its texts use.
func checkQuery(t *testing.T, known map[string][]string, where, query string, used []string) {
	t.Helper()
	// A grouping or a text may use a label of one of the metrics, of the target, or of the rule.
	allowed := slices.Clone(ofTargets)
	if match := replaced.FindStringSubmatch(query); match != nil {
		allowed = append(allowed, match[1])
	}
	found := metricName.FindAllStringSubmatch(query, -1)
	if len(found) == 0 {
		t.Errorf("%s names no metric", where)
	}
	for _, match := range found {
		labels, ok := known[match[1]]
		if !ok {
			t.Errorf("%s: no metric %s", where, match[1])
		}
		allowed = append(allowed, labels...)
		for _, m := range matcher.FindAllStringSubmatch(match[2], -1) {
			if !slices.Contains(labels, m[1]) && !slices.Contains(ofTargets, m[1]) {
				t.Errorf("%s: %s has no label %s, but %q", where, match[1], m[1], labels)
			}
		}
	}
	for _, match := range grouping.FindAllStringSubmatch(query, -1) {
		used = append(used, words(match[1])...)
	}
	for _, label := range used {
		if !slices.Contains(allowed, label) {
			t.Errorf("%s uses the label %s, which none of its sources has: %q", where, label, allowed)
		}
	}
}

func words(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// command matches a sondectl command in the rules or in the guide, without its arguments.
var command = regexp.MustCompile("\\bsondectl ((?:[a-z]+[a-z-]*\\b ?)+)([^;`\n]*)")

// TestCommandsExist looks up the commands and flags of the alerts and the guide in the reference.
func TestCommandsExist(t *testing.T) {
	sections := map[string]string{}
	for _, section := range strings.Split(read(t, "docs/reference/sondectl.md"), "\n## sondectl ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		sections[name] = text
	}
	texts := map[string]string{"docs/guides/monitoring.md": read(t, "docs/guides/monitoring.md")}
	for _, alert := range alerts(t) {
		texts[alert.Alert] = alert.Annotations["description"]
		if !strings.Contains(texts[alert.Alert], "Next: ") {
			t.Errorf("the description of %s has no command", alert.Alert)
		}
	}
	flag := regexp.MustCompile(`(?:^| )(--?[a-z-]+)`)
	for where, text := range texts {
		for _, match := range command.FindAllStringSubmatch(text, -1) {
			name := strings.TrimSpace(match[1])
			for sections[name] == "" && strings.Contains(name, " ") {
				name = name[:strings.LastIndex(name, " ")]
			}
			if sections[name] == "" {
				t.Errorf("%s: %q: unknown command", where, match[0])
				continue
			}
			for _, f := range flag.FindAllStringSubmatch(match[2], -1) {
				if !regexp.MustCompile("`(-., )?" + f[1] + "[ `,]").MatchString(sections[name]) {
					t.Errorf("%s: %q: sondectl %s has no flag %s", where, match[0], name, f[1])
				}
			}
		}
	}
}

// TestGuide compares the guide with the rules: each alert links to a section of the guide, which has its expression,
// its duration and its severity.
func TestGuide(t *testing.T) {
	guide := read(t, monitoring.Guide)
	var sections []string
	for _, match := range regexp.MustCompile(`(?m)^### (Sonde\w+)$`).FindAllStringSubmatch(guide, -1) {
		sections = append(sections, match[1])
	}
	names := make([]string, 0, 10)
	for _, alert := range alerts(t) {
		names = append(names, alert.Alert)
		when, severity := "At once", alert.Labels["severity"]
		if alert.For != "" {
			when = "For " + alert.For
		}
		if strings.Contains(severity, "{{") {
			severity = "critical or warning"
		}
		want := "\n### " + alert.Alert + "\n\n" + when + ", " + severity + ".\n\n```promql\n" + alert.Expr + "```\n\n"
		if !strings.Contains(guide, want) {
			t.Errorf("%s does not have:\n%s", monitoring.Guide, want)
		}
		if url, want := alert.Annotations["runbook_url"], "/blob/main/"+monitoring.Guide+"#"+strings.ToLower(alert.Alert); !strings.HasSuffix(url, want) {
			t.Errorf("the runbook_url of %s is %s, want the suffix %s", alert.Alert, url, want)
		}
		if got := slices.Sorted(maps.Keys(alert.Annotations)); !slices.Equal(got, []string{"description", "runbook_url", "summary"}) {
			t.Errorf("%s has the annotations %q", alert.Alert, got)
		}
	}
	if !slices.Equal(sections, names) {
		t.Errorf("%s has sections about %q, want %q", monitoring.Guide, sections, names)
	}
}
