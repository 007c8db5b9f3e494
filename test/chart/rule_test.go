package chart_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/test/chart"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/monitoring"
)

// prometheusRule is a PrometheusRule as the Prometheus Operator reads it. Its spec has the form of a
// rule file.
type prometheusRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              map[string]any `json:"spec"`
}

// The PrometheusRule has the alerts of the file, with unchanged Prometheus templates.
func TestPrometheusRule(t *testing.T) {
	var rule prometheusRule
	if only(t, "PrometheusRule", &rule) {
		t.Error("the chart has a PrometheusRule by default, which a cluster without the Prometheus Operator rejects")
	}
	if !only(t, "PrometheusRule", &rule, "--set=monitoring.prometheusRule.enabled=true", "--set=monitoring.prometheusRule.labels.release=prometheus", `--set=monitoring.prometheusRule.labels.app\.kubernetes\.io/name=other`) {
		t.Fatal("no PrometheusRule")
	}
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(root, "deploy", "chart", "files", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]any
	if err := yaml.UnmarshalStrict(file, &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, rule.Spec); diff != "" {
		t.Errorf("its spec (-file +chart):\n%s", diff)
	}
	if rule.APIVersion != "monitoring.coreos.com/v1" || rule.Namespace != chart.Namespace || rule.Labels["release"] != "prometheus" || rule.Labels["app.kubernetes.io/name"] != "sonde" {
		t.Errorf("it is %+v %+v", rule.TypeMeta, rule.ObjectMeta)
	}
}

// The ConfigMap has the dashboards' files, with unchanged legends.
func TestDashboards(t *testing.T) {
	isDashboards := func(m chart.Manifest) bool { return m.Kind == "ConfigMap" && m.Name == "sonde-dashboards" }
	all, err := chart.Render(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(all, isDashboards) {
		t.Error("the chart has dashboards by default")
	}
	var m corev1.ConfigMap
	named(t, "ConfigMap", "sonde-dashboards", &m, "--set=monitoring.dashboards.enabled=true", "--set=monitoring.dashboards.labels.team=a")
	if m.Labels["grafana_dashboard"] != "1" || m.Labels["team"] != "a" || m.Namespace != chart.Namespace {
		t.Errorf("its labels are %v in %s", m.Labels, m.Namespace)
	}
	dashboards, err := monitoring.Dashboards()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Data) != len(dashboards) {
		t.Errorf("%d files, want one for each of the %d dashboards", len(m.Data), len(dashboards))
	}
	for name := range dashboards {
		if want, err := monitoring.Read(monitoring.DashboardsDirectory + "/" + name + ".json"); err != nil || m.Data[name+".json"] != want {
			t.Errorf("%s.json differs from its file: %v", name, err)
		}
	}
}

func TestWrongValuesOfThePrometheusRuleAreNamed(t *testing.T) {
	tests := map[string]struct{ flag, want string }{
		"text for the switch":      {"--set-string=monitoring.prometheusRule.enabled=true", "/monitoring/prometheusRule/enabled': got string, want boolean"},
		"a label that is not text": {"--set=monitoring.prometheusRule.labels.a=1", "/monitoring/prometheusRule/labels/a': got number, want string"},
		"unknown value":            {"--set=monitoring.prometheusRule.namespace=x", "'namespace' not allowed"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := chart.Render(t.Context(), tc.flag); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
		})
	}
}
