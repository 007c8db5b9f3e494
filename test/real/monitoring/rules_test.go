package monitoring_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/test/monitoring"
)

var program = sync.OnceValues(func() (string, error) { return monitoring.Program(context.Background(), "promtool") })

// promtool runs a command of promtool, and returns its output and error.
func promtool(t *testing.T, args ...string) (string, error) {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	return string(out), err
}

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
	return all
}

// write writes a file for promtool.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRulesAreValid(t *testing.T) {
	for name, rules := range map[string]string{"the file": read(t, monitoring.RulesFile), "shortened": monitoring.Shorten(read(t, monitoring.RulesFile))} {
		if out, err := promtool(t, "check", "rules", "--lint=all", "--lint-fatal", write(t, "alerts.yaml", rules)); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// TestAlerts has promtool play the fault of each alert, and a similar situation that must not fire it. Wrong rules
// must fail the test.
func TestAlerts(t *testing.T) {
	rules := read(t, monitoring.RulesFile)
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := alerts(t)
	if len(files) != len(all) {
		t.Errorf("testdata has %d files, want one for each of the %d alerts", len(files), len(all))
	}
	for _, alert := range all {
		t.Run(alert.Alert, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(filepath.Join("testdata", alert.Alert+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			const path = "../../../" + monitoring.RulesFile
			if strings.Count(string(text), path) != 1 {
				t.Fatalf("rule_files is not [%s]", path)
			}
			tryRules := func(rules string) (string, error) {
				return promtool(t, "test", "rules", write(t, "test.yaml", strings.ReplaceAll(string(text), path, write(t, "alerts.yaml", rules))))
			}
			if out, err := tryRules(rules); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for name, wrong := range wrongRules(t, rules, alert) {
				if out, err := tryRules(wrong); err == nil {
					t.Errorf("with rules that are wrong (%s) the test succeeds:\n%s", name, out)
				}
			}
		})
	}
}

// wrongRules returns rule files in which one alert is wrong.
func wrongRules(t *testing.T, rules string, of monitoring.Alert) map[string]string {
	t.Helper()
	begin := strings.Index(rules, "- alert: "+of.Alert+"\n")
	before, rule := rules[:begin], rules[begin:]
	rule, after := cutAt(rule, "\n  - alert: ")
	edited := func(old, replacement string) string {
		if strings.Count(rule, old) != 1 {
			t.Fatalf("the rule has %q %d times", old, strings.Count(rule, old))
		}
		return before + strings.Replace(rule, old, replacement, 1) + after
	}
	wrong := map[string]string{"always": edited("expr: |\n", "expr: |\n      vector(1) or\n"), "never": edited("expr: |\n", "expr: |\n      vector(0) > 1 and\n")}
	if of.For != "" {
		wrong["at once"] = edited("    for: "+of.For+"\n", "")
		wrong["after twice the time"] = edited("    for: "+of.For+"\n", "    for: 2"+of.For+"\n")
		if !regexp.MustCompile(`^[1-9]\d?m$`).MatchString(of.For) {
			t.Errorf("for: %s, want minutes", of.For)
		}
	}
	return wrong
}

// cutAt returns the text before a separator, and the rest from the separator on.
func cutAt(text, separator string) (before, rest string) {
	if i := strings.Index(text, separator); i >= 0 {
		return text[:i], text[i:]
	}
	return text, ""
}

// TestScrapeConfigs checks the scrape configurations of the docs with promtool.
func TestScrapeConfigs(t *testing.T) {
	for _, page := range []string{monitoring.Guide, "docs/metrics.md"} {
		config, err := monitoring.ScrapeConfig(page)
		if err != nil {
			t.Fatal(err)
		}
		path := write(t, "prometheus.yml", config)
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), "alerts.yaml"), []byte(read(t, monitoring.RulesFile)), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := promtool(t, "check", "config", path); err != nil {
			t.Errorf("%s: %v\n%s", page, err, out)
		}
	}
}

// TestQueriesOfDashboards has promtool parse each query, as a rule that records its value. A wrong query must fail.
func TestQueriesOfDashboards(t *testing.T) {
	all, err := monitoring.Dashboards()
	if err != nil {
		t.Fatal(err)
	}
	check := func(queries ...string) (string, error) {
		var file struct {
			Groups []any `json:"groups"`
		}
		var rules []any
		for i, query := range queries {
			query = strings.NewReplacer("$__rate_interval", "5m", "$mesh", ".*", "$namespace", ".*").Replace(query)
			rules = append(rules, map[string]any{"record": "dashboard:query:" + strconv.Itoa(i), "expr": query})
		}
		file.Groups = []any{map[string]any{"name": "dashboards", "rules": rules}}
		text, err := yaml.Marshal(file)
		if err != nil {
			t.Fatal(err)
		}
		return promtool(t, "check", "rules", write(t, "queries.yaml", string(text)))
	}
	var queries []string
	for _, d := range all {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				queries = append(queries, target.Expr)
			}
		}
	}
	if out, err := check(queries...); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := check("sum by (mesh (sonde_agents_lost)"); err == nil {
		t.Errorf("a wrong query is accepted:\n%s", out)
	}
}
