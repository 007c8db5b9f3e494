package sonde_test

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/internal/testing/doctest"
)

var update = flag.Bool("update", false, "write docs/metrics.md and docs/reference")

const metricsFile = "docs/metrics.md"

// metric is a metric defined in the source.
type metric struct {
	name, kind, help string
	labels           []string
	// directory of the source, whose first part selects the program
	directory string
}

// TestMetricsGolden compares docs/metrics.md with the metrics that the source defines.
func TestMetricsGolden(t *testing.T) {
	watchSource(t)
	all := definedMetrics(t)
	if len(all) < 30 {
		t.Errorf("%d metrics found, there are more", len(all))
	}
	text := metricsPage(all)
	doctest.Golden(t, *update, metricsFile, text)
}

// metricsPage returns docs/metrics.md.
func metricsPage(all []metric) string {
	var page strings.Builder
	write := func(format string, args ...any) { _, _ = fmt.Fprintf(&page, format, args...) } // never fails
	write("# Metrics\n\n<!-- Written by make golden from the source. -->\n\n" +
		"Each program serves `/metrics` in the text format of Prometheus: `sonde-cp` on its health port, 5680; " +
		"`sonde-watchdog` and `sonde-cni` on `--health-addr`; `sonde-dp` on `--admin-addr`, and for Prometheus on " +
		"`--metrics-addr` ([metrics of pods](#metrics-of-pods)). `sonde-dp` also serves Envoy's statistics (`envoy_…`), " +
		"the other programs Go's metrics (`go_…`, `process_…`).\n")
	ofAll := func(directory string) bool { return directory == "health" || directory == "internal/buildinfo" }
	for _, program := range []struct {
		title string
		has   func(directory string) bool
	}{
		{"All programs", ofAll},
		{"`sonde-cp`, the control plane", func(d string) bool {
			return !ofAll(d) &&
				!strings.HasPrefix(d, "dpagent") && !strings.HasPrefix(d, "watchdog") && !strings.HasPrefix(d, "cni")
		}},
		{"`sonde-dp`, the agent", func(d string) bool { return strings.HasPrefix(d, "dpagent") }},
		{"`sonde-watchdog`", func(d string) bool { return strings.HasPrefix(d, "watchdog") }},
		{"`sonde-cni`, the daemon of the CNI plugin", func(d string) bool { return strings.HasPrefix(d, "cni") }},
	} {
		write("\n## %s\n\n| name | type | labels | meaning |\n|---|---|---|---|\n", program.title)
		last := ""
		for _, m := range all {
			row := fmt.Sprintf("| `%s` | %s | %s | %s |\n", m.name, m.kind, strings.Join(m.labels, ", "), m.help)
			if program.has(m.directory) && row != last { // each store defines this metric
				write("%s", row)
				last = row
			}
		}
	}
	page.WriteString(podMetricsSection())
	return page.String()
}

// definedMetrics returns all metrics that the programs define, sorted by name.
func definedMetrics(t *testing.T) []metric {
	t.Helper()
	directories := map[string][]*ast.File{}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (strings.HasPrefix(path, ".") && path != "." || slices.Contains([]string{"test", "tools", "deploy", "docs", "bin"}, path)):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		directories[filepath.Dir(path)] = append(directories[filepath.Dir(path)], file)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []metric
	for directory, files := range directories {
		for _, file := range files {
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if m, ok := metricOf(t, call, files); ok {
						m.directory = directory
						all = append(all, m)
					}
				}
				return true
			})
		}
	}
	slices.SortFunc(all, func(a, b metric) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.directory, b.directory))
	})
	return all
}

// constructors maps functions to the types of the metrics that they create. A metric with a Desc has its own type.
var constructors = map[string]string{
	"NewCounter": "counter", "NewCounterVec": "counter", "NewCounterFunc": "counter",
	"NewGauge": "gauge", "NewGaugeVec": "gauge", "NewGaugeFunc": "gauge",
	"NewHistogram": "histogram", "NewHistogramVec": "histogram", "NewSummary": "summary", "NewSummaryVec": "summary",
	"NewDesc": "",
}

// metricOf returns the metric that a call creates, false if it creates none. It fails the test if it cannot read the
// call, since the page would lack the metric.
func metricOf(t *testing.T, call *ast.CallExpr, files []*ast.File) (m metric, ok bool) {
	t.Helper()
	m.kind, ok = constructors[prometheusName(call.Fun)]
	if !ok || len(call.Args) == 0 {
		return metric{}, false
	}
	if m.kind == "" {
		m.name, m.help, m.labels = text(t, call.Args[0]), text(t, call.Args[1]), texts(t, call.Args[2])
		m.kind = kindOfDesc(t, m.name, call, files)
		return m, true
	}
	options, isLiteral := call.Args[0].(*ast.CompositeLit)
	if !isLiteral {
		t.Fatalf("a metric of type %s is created from options that are not a literal", m.kind)
	}
	for _, e := range options.Elts {
		field := e.(*ast.KeyValueExpr) //nolint:forcetypeassert // options have names
		switch field.Key.(*ast.Ident).Name {
		case "Name":
			m.name = text(t, field.Value)
		case "Help":
			m.help = text(t, field.Value)
		case "ConstLabels":
			for _, l := range field.Value.(*ast.CompositeLit).Elts {
				m.labels = append(m.labels, text(t, l.(*ast.KeyValueExpr).Key))
			}
		}
	}
	if strings.HasSuffix(prometheusName(call.Fun), "Vec") {
		m.labels = append(m.labels, texts(t, call.Args[1])...)
	}
	return m, true
}

// prometheusName returns the name that an expression has in the package prometheus, or "".
func prometheusName(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		if p, ok := s.X.(*ast.Ident); ok && p.Name == "prometheus" {
			return s.Sel.Name
		}
	}
	return ""
}

// kindOfDesc returns the type of the metrics created with a variable that has the Desc.
func kindOfDesc(t *testing.T, name string, desc *ast.CallExpr, files []*ast.File) string {
	t.Helper()
	var variable, kind string
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 && v.Values[0] == desc {
				variable = v.Names[0].Name
			}
			return true
		})
	}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && prometheusName(call.Fun) == "MustNewConstMetric" {
				if of, ok := call.Args[0].(*ast.Ident); ok && of.Name == variable {
					kind = strings.ToLower(strings.TrimSuffix(prometheusName(call.Args[1]), "Value"))
				}
			}
			return true
		})
	}
	if kind == "" {
		t.Errorf("%s: no metric is created with it", name)
	}
	return kind
}

// text returns the value of a string of one or more literals.
func text(t *testing.T, e ast.Expr) string {
	t.Helper()
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		if err != nil {
			t.Fatal(err)
		}
		return s
	case *ast.BinaryExpr:
		return text(t, e.X) + text(t, e.Y)
	}
	t.Fatalf("name, help and labels of a metric must be literals, not %T", e)
	return ""
}

// texts returns the items of a list of strings; nil has none.
func texts(t *testing.T, e ast.Expr) []string {
	t.Helper()
	literal, ok := e.(*ast.CompositeLit)
	if !ok {
		if name, ok := e.(*ast.Ident); !ok || name.Name != "nil" {
			t.Fatalf("labels of a metric must be a literal, not %T", e)
		}
		return nil
	}
	all := make([]string, 0, len(literal.Elts))
	for _, item := range literal.Elts {
		all = append(all, text(t, item))
	}
	return all
}
