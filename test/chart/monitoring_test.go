package chart_test

import (
	"cmp"
	"maps"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/chart"
)

// monitor has the fields of a ServiceMonitor and a PodMonitor that the chart uses.
type monitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		NamespaceSelector struct {
			Any        bool     `json:"any"`
			MatchNames []string `json:"matchNames"`
		} `json:"namespaceSelector"`
		Selector            metav1.LabelSelector `json:"selector"`
		Endpoints           []endpoint           `json:"endpoints"`
		PodMetricsEndpoints []endpoint           `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

type endpoint struct {
	Port        string    `json:"port"`
	Path        string    `json:"path"`
	Interval    string    `json:"interval"`
	Relabelings []relabel `json:"relabelings"`
}

type relabel struct {
	Action       string   `json:"action"`
	SourceLabels []string `json:"sourceLabels"`
	Separator    string   `json:"separator"` // ";" if it is empty
	Regex        string   `json:"regex"`
	TargetLabel  string   `json:"targetLabel"`
	Replacement  *string  `json:"replacement"`
}

func TestNoMonitorsByDefault(t *testing.T) {
	all, err := chart.Render(t.Context(), withWatchdog)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if strings.HasSuffix(m.Kind, "Monitor") {
			t.Errorf("the chart has %s %s, whose definition may be missing in a cluster", m.Kind, m.Name)
		}
	}
}

// The ServiceMonitor selects existing Services and ports.
func TestServiceMonitor(t *testing.T) {
	flags := []string{withWatchdog, "--set=monitoring.serviceMonitor.enabled=true", "--set=monitoring.serviceMonitor.labels.release=prometheus"}
	var m monitor
	named(t, "ServiceMonitor", "sonde", &m, flags...)
	if m.Labels["release"] != "prometheus" || len(m.Spec.NamespaceSelector.MatchNames) != 1 || m.Spec.NamespaceSelector.MatchNames[0] != chart.Namespace {
		t.Errorf("labels %v, namespaces %+v", m.Labels, m.Spec.NamespaceSelector)
	}
	selector, err := metav1.LabelSelectorAsSelector(&m.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
	all, err := chart.Render(t.Context(), flags...)
	if err != nil {
		t.Fatal(err)
	}
	selected := map[string]bool{}
	for _, manifest := range all {
		if manifest.Kind != "Service" {
			continue
		}
		var s corev1.Service
		if err := manifest.Decode(&s); err != nil {
			t.Fatal(err)
		}
		if !selector.Matches(labelsOf(s.Labels)) {
			continue
		}
		selected[s.Name] = true
		if p := s.Spec.Ports; len(p) != 1 || p[0].Name != m.Spec.Endpoints[0].Port {
			t.Errorf("Service %s has the ports %+v, the ServiceMonitor asks %q", s.Name, p, m.Spec.Endpoints[0].Port)
		}
		var d appsv1.Deployment
		named(t, "Deployment", strings.TrimSuffix(s.Name, "-metrics"), &d, flags...)
		checkSelects(t, &s, &d)
	}
	if len(selected) != 2 || !selected["sonde-cp-metrics"] || !selected["sonde-watchdog-metrics"] {
		t.Errorf("the ServiceMonitor selects %v", selected)
	}
}

// The operator's label "service" would hide the label of sonde_service_endpoints.
func TestServiceMonitorHidesNoLabel(t *testing.T) {
	var m monitor
	named(t, "ServiceMonitor", "sonde", &m, "--set=monitoring.serviceMonitor.enabled=true")
	got, kept := relabeled(t, m.Spec.Endpoints[0].Relabelings, map[string]string{"service": "sonde-cp-metrics", "pod": "a"})
	if want := map[string]string{"pod": "a"}; !kept || !maps.Equal(got, want) {
		t.Errorf("the target has the labels %v, want %v", got, want)
	}
}

type labelsOf map[string]string

// Has implements labels.Labels.
func (l labelsOf) Has(key string) bool { _, has := l[key]; return has }

// Get implements labels.Labels.
func (l labelsOf) Get(key string) string { return l[key] }

// Lookup implements labels.Labels.
func (l labelsOf) Lookup(key string) (string, bool) { value, has := l[key]; return value, has }

// checkSelects fails the test unless a Service selects the pods of a Deployment, and these have its
// port.
func checkSelects(t *testing.T, s *corev1.Service, d *appsv1.Deployment) {
	t.Helper()
	for key, want := range s.Spec.Selector {
		if got := d.Spec.Template.Labels[key]; got != want {
			t.Errorf("Service %s selects %s=%s, pods have %q", s.Name, key, want, got)
		}
	}
	for _, p := range d.Spec.Template.Spec.Containers[0].Ports {
		if p.Name == s.Spec.Ports[0].TargetPort.StrVal && p.ContainerPort == s.Spec.Ports[0].Port {
			return
		}
	}
	t.Errorf("Service %s: the pods of %s have no such port", s.Name, d.Name)
}

// relabeled returns the labels of a target after Prometheus' relabeling, or false if the target is
// dropped.
func relabeled(t *testing.T, rules []relabel, labels map[string]string) (map[string]string, bool) {
	t.Helper()
	for _, r := range rules {
		values := make([]string, 0, len(r.SourceLabels))
		for _, name := range r.SourceLabels {
			values = append(values, labels[name])
		}
		of := regexp.MustCompile("^(?s:" + cmp.Or(r.Regex, "(.*)") + ")$")
		value := strings.Join(values, cmp.Or(r.Separator, ";"))
		match := of.FindStringSubmatchIndex(value)
		switch r.Action {
		case "keep", "drop":
			if (match != nil) != (r.Action == "keep") {
				return nil, false
			}
		case "labeldrop":
			maps.DeleteFunc(labels, func(name, _ string) bool { return of.MatchString(name) })
		case "", "replace":
			replacement := "$1"
			if r.Replacement != nil {
				replacement = *r.Replacement
			}
			if match != nil {
				labels[r.TargetLabel] = string(of.ExpandString(nil, replacement, value, match))
			}
		default:
			t.Fatalf("action %q", r.Action)
		}
	}
	return labels, true
}

func TestPodMonitor(t *testing.T) {
	var m monitor
	named(t, "PodMonitor", "sonde-sidecars", &m, "--set=monitoring.podMonitor.enabled=true", "--set=monitoring.podMonitor.interval=1m")
	e := m.Spec.PodMetricsEndpoints[0]
	if !m.Spec.NamespaceSelector.Any || m.Spec.Selector.MatchExpressions[0].Key != mesh.LabelMesh || e.Path != "/metrics" || e.Interval != "1m" || e.Port != "" {
		t.Errorf("the PodMonitor is %+v", m.Spec)
	}
	const annotation = "__meta_kubernetes_pod_annotation_sonde_dev_metrics_port"
	const phase, name, ip = "__meta_kubernetes_pod_phase", "__meta_kubernetes_pod_container_name", "__meta_kubernetes_pod_ip"
	tests := map[string]struct {
		labels map[string]string // differences from a running sidecar
		want   string            // "" without a target
	}{
		"IPv4":                {want: "10.0.0.1:5670"},
		"IPv6":                {map[string]string{ip: "fd00::1"}, "[fd00::1]:5670"},
		"another port":        {map[string]string{annotation: "7000"}, "10.0.0.1:7000"},
		"another port, IPv6":  {map[string]string{ip: "fd00::1", annotation: "7000"}, "[fd00::1]:7000"},
		"none":                {map[string]string{annotation: "0"}, ""},
		"of a release before": {map[string]string{annotation: ""}, ""},
		"another container":   {map[string]string{name: "app"}, ""},
		"has not started":     {map[string]string{phase: "Pending"}, ""},
		"has ended":           {map[string]string{phase: "Succeeded"}, ""},
	}
	for test, tc := range tests {
		t.Run(test, func(t *testing.T) {
			labels := map[string]string{
				phase: "Running", name: mesh.ContainerSidecar, ip: "10.0.0.1", annotation: "5670", "__meta_kubernetes_pod_label_kuma_io_mesh": "blue",
				"__address__": "10.0.0.1:8080",                       // of a port that the container declares
				"container":   mesh.ContainerSidecar, "pod": "web-1", // the operator's labels
			}
			maps.Copy(labels, tc.labels)
			got, kept := relabeled(t, e.Relabelings, labels)
			if kept != (tc.want != "") || kept && (got["__address__"] != tc.want || got["mesh"] != "blue" || got["container"] != "" || got["pod"] != "web-1") {
				t.Errorf("the target is %v, kept %t, want %q", got, kept, tc.want)
			}
		})
	}
}

func TestWrongValuesOfMonitorsAreNamed(t *testing.T) {
	for flag, want := range map[string]string{
		"--set=monitoring.podMonitor.enable=true":       "'enable' not allowed",
		"--set=monitoring.podMonitor.interval=30":       "/monitoring/podMonitor/interval': got number, want string",
		"--set=monitoring.serviceMonitor.interval=soon": "/monitoring/serviceMonitor/interval': 'soon' does not match pattern",
		"--set=monitoring.prometheus=true":              "'prometheus' not allowed",
	} {
		if _, err := chart.Render(t.Context(), flag); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", flag, err, want)
		}
	}
}
