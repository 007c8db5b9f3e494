package chart_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistration "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/sonde-mesh/sonde/test/chart"
	"github.com/sonde-mesh/sonde/watchdog"
	"github.com/sonde-mesh/sonde/watchdog/config"
)

const withWatchdog = "--set=watchdog.enabled=true"

// The watchdog is installed on request, with its own objects.
func TestWatchdog(t *testing.T) {
	all, err := chart.Render(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(all, func(m chart.Manifest) bool { return strings.Contains(m.YAML, "watchdog") }) {
		t.Error("the chart has objects of the watchdog by default")
	}
	var d, controlPlane appsv1.Deployment
	var service corev1.Service
	var budget policyv1.PodDisruptionBudget
	named(t, "Deployment", watchdog.DefaultName, &d, withWatchdog, "--set=watchdog.dryRun=true")
	named(t, "Deployment", "sonde-cp", &controlPlane, withWatchdog)
	named(t, "Service", "sonde-cp", &service, withWatchdog)
	named(t, "PodDisruptionBudget", watchdog.DefaultName, &budget, withWatchdog)
	pod := d.Spec.Template.Spec
	if *d.Spec.Replicas != 2 || pod.ServiceAccountName != watchdog.DefaultName || !slices.Contains(pod.Containers[0].Args, "--dry-run") || pod.Containers[0].Command[0] != "/usr/bin/sonde-watchdog" {
		t.Errorf("the Deployment is %+v", d.Spec)
	}
	labels := d.Spec.Template.Labels
	for name, selector := range map[string]map[string]string{"the Service": service.Spec.Selector, "the Deployment": controlPlane.Spec.Selector.MatchLabels} {
		selects := true
		for key, value := range selector {
			selects = selects && labels[key] == value
		}
		if selects {
			t.Errorf("%s of the control plane selects pods of the watchdog", name)
		}
	}
	if d := cmp.Diff(controlPlane.Spec.Template.Spec.SecurityContext, pod.SecurityContext); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(controlPlane.Spec.Template.Spec.Containers[0].SecurityContext, pod.Containers[0].SecurityContext); d != "" {
		t.Error(d)
	}
	for key, value := range budget.Spec.Selector.MatchLabels {
		if labels[key] != value {
			t.Errorf("the PodDisruptionBudget selects by %s=%s, pods have %q", key, value, labels[key])
		}
	}
}

// The watchdog may scale, and read Secrets, only in the namespaces of the values.
func TestRightsOfTheWatchdog(t *testing.T) {
	flags := []string{withWatchdog, "--set=watchdog.local=false", "--set=watchdog.namespaces[0].name=a", "--set=watchdog.namespaces[0].secrets={probe}", "--set=watchdog.namespaces[1].name=b", "--set=watchdog.dependants.example\\.com={things}"}
	all, err := chart.Render(t.Context(), flags...)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]rbacv1.PolicyRule{}
	for _, m := range all {
		if m.Kind != "Role" && m.Kind != "ClusterRole" || !strings.HasPrefix(m.Name, watchdog.DefaultName) {
			continue
		}
		var role rbacv1.Role
		if m.Kind == "ClusterRole" {
			var all rbacv1.ClusterRole
			if err := m.Decode(&all); err != nil {
				t.Fatal(err)
			}
			role.Rules = all.Rules
		} else if err := m.Decode(&role); err != nil {
			t.Fatal(err)
		}
		got[role.Namespace] = append(got[role.Namespace], role.Rules...)
	}
	rule := func(group, resource string, names []string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: strings.Split(resource, ","), ResourceNames: names, Verbs: verbs}
	}
	dependants := []rbacv1.PolicyRule{
		rule("apps", "deployments,statefulsets", nil, "get", "patch"), rule("apps", "deployments/scale,statefulsets/scale", nil, "get", "update"),
		rule("example.com", "things", nil, "get", "patch"), rule("example.com", "things/scale", nil, "get", "update"),
	}
	want := map[string][]rbacv1.PolicyRule{
		"": {
			rule("sonde.dev", "watchedclusters", nil, "get", "list", "watch"), rule("sonde.dev", "watchedclusters/status", nil, "update"),
			rule("events.k8s.io", "events", nil, "create", "patch"),
		},
		chart.Namespace: {
			rule("", "secrets", []string{"sonde-watchdog-leader"}, "get"),
			rule("coordination.k8s.io", "leases", nil, "create"), rule("coordination.k8s.io", "leases", []string{watchdog.LeaseName}, "get", "update"),
		},
		"a": append(slices.Clone(dependants), rule("", "secrets", []string{"probe"}, "get")),
		"b": dependants,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// alone and own install the watchdog without the control plane, and in its own namespace.
const alone, own = "--set=controlPlane.enabled=false", "--set=watchdog.namespace=apart"

// Without the control plane, the chart has none of its objects; with its own namespace, the watchdog has no objects
// in another one.
func TestWatchdogAlone(t *testing.T) {
	for _, flags := range [][]string{{own}, {own, alone}} {
		all, err := chart.Render(t.Context(), append(flags, withWatchdog, "--set=watchdog.gardener.enabled=true", "--set=networkPolicy.enabled=true", "--set=monitoring.podMonitor.enabled=true",
			"--set=monitoring.serviceMonitor.enabled=true", "--set=monitoring.prometheusRule.enabled=true")...)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			there, controlPlane := isThere(m), strings.Contains(m.YAML, "sonde-cp")
			if there && (len(flags) > 1 || strings.HasSuffix(m.Name, watchdog.DefaultName)) {
				t.Errorf("%q: %s %s is in the namespace of the control plane", flags, m.Kind, m.Name)
			}
			if controlPlane && len(flags) > 1 {
				t.Errorf("%q: %s %s is about the control plane", flags, m.Kind, m.Name)
			}
		}
	}
	if _, err := chart.Render(t.Context(), alone); err == nil || !strings.Contains(err.Error(), "controlPlane.enabled, watchdog.enabled: one of them must be true") {
		t.Errorf("without both: %v", err)
	}
	notes, err := chart.Notes(t.Context(), withWatchdog, alone, own)
	if err != nil || strings.Contains(notes, "control plane") || !strings.Contains(notes, "in namespace apart") {
		t.Errorf("notes %q, %v", notes, err)
	}
}

// isThere reports whether an object is in the control plane's namespace, or refers to it. The watchdog's
// ServiceMonitor is in the release's namespace.
func isThere(m chart.Manifest) bool {
	return m.Kind != "ServiceMonitor" && strings.Contains(m.YAML, "namespace: "+chart.Namespace)
}

// In its own namespace, the watchdog uses that namespace, and the webhook does not change pods
// there.
func TestNamespaceOfTheWatchdog(t *testing.T) {
	var d appsv1.Deployment
	var webhooks admissionregistration.MutatingWebhookConfiguration
	named(t, "Deployment", watchdog.DefaultName, &d, withWatchdog, own)
	if d.Namespace != "apart" || !slices.Contains(d.Spec.Template.Spec.Containers[0].Args, "--namespace=apart") {
		t.Errorf("the Deployment is in %s, with %q", d.Namespace, d.Spec.Template.Spec.Containers[0].Args)
	}
	only(t, "MutatingWebhookConfiguration", &webhooks, withWatchdog, own)
	for _, w := range webhooks.Webhooks {
		if names := w.NamespaceSelector.MatchExpressions[0].Values; !slices.Contains(names, "apart") {
			t.Errorf("%s leaves out %q, want apart, too", w.Name, names)
		}
	}
}

// For shoots, the watchdog has the rights that their file needs in all namespaces, and no more: a Secret
// and dependants by name.
func TestWatchdogOfShoots(t *testing.T) {
	flags := []string{withWatchdog, "--set=watchdog.gardener.enabled=true", "--set=watchdog.podLabels.a=b"}
	var role rbacv1.ClusterRole
	named(t, "ClusterRole", "sonde-watchdog-shoots", &role, flags...)
	dependants := []string{"kube-controller-manager", "machine-controller-manager", "cluster-autoscaler"}
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{"extensions.gardener.cloud"}, Resources: []string{"clusters"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"sonde.dev"}, Resources: []string{"watchedclusters"}, Verbs: []string{"create"}},
		{APIGroups: []string{"sonde.dev"}, Resources: []string{"watchedclusters"}, ResourceNames: []string{watchdog.DefaultFileCluster}, Verbs: []string{"patch"}},
		{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"shoot-access-dependency-watchdog-probe"}, Verbs: []string{"get"}},
		{APIGroups: []string{"apps"}, Resources: []string{"deployments", "statefulsets"}, ResourceNames: dependants, Verbs: []string{"get", "patch"}},
		{APIGroups: []string{"apps"}, Resources: []string{"deployments/scale", "statefulsets/scale"}, ResourceNames: dependants, Verbs: []string{"get", "update"}},
	}
	if d := cmp.Diff(want, role.Rules); d != "" {
		t.Error(d)
	}
	var d appsv1.Deployment
	named(t, "Deployment", watchdog.DefaultName, &d, flags...)
	if args := d.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--gardener") || !slices.Contains(args, "--config=/etc/sonde-watchdog/dep-config.yaml") || d.Spec.Template.Labels["a"] != "b" {
		t.Errorf("the Deployment is %+v", d.Spec.Template)
	}
	var file corev1.ConfigMap
	named(t, "ConfigMap", watchdog.DefaultName, &file, flags...)
	path := filepath.Join(t.TempDir(), "dep-config.yaml")
	if err := os.WriteFile(path, []byte(file.Data["dep-config.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	spec, err := config.ReadFile(path, "shoot--a--b", false, config.Self{})
	if err != nil || len(spec.Dependants) != 3 {
		t.Errorf("the file is %q: %+v, %v", file.Data, spec, err)
	}
}

func TestWrongValuesOfTheWatchdogAreNamed(t *testing.T) {
	for flag, want := range map[string]string{
		"--set=watchdog.replica=1":                                                "'replica' not allowed",
		"--set=watchdog.namespace=A":                                              "/watchdog/namespace': 'A' does not match pattern",
		"--set=controlPlane.replicas=1":                                           "'replicas' not allowed",
		"--set=watchdog.replicas=0":                                               "/watchdog/replicas': minimum: got 0, want 1",
		"--set=watchdog.namespaces={a}":                                           "/watchdog/namespaces/0': got string, want object",
		"--set=watchdog.namespaces[0].secrets={a}":                                "/watchdog/namespaces/0': missing property 'name'",
		"--set=watchdog.logLevel=loud":                                            "/watchdog/logLevel",
		"--set=watchdog.gardener.config.kubeConfigSecretName=":                    "/watchdog/gardener/config/kubeConfigSecretName': minLength",
		"--set-json=watchdog.gardener.config.dependentResourceInfos=[]":           "/watchdog/gardener/config/dependentResourceInfos': minItems",
		`--set-json=watchdog.gardener.config.dependentResourceInfos=[{"ref":{}}]`: "missing property 'name'",
		"--set=watchdog.dependants.apps=deployments":                              "/watchdog/dependants/apps': got string, want array",
	} {
		if _, err := chart.Render(t.Context(), withWatchdog, flag); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", flag, err, want)
		}
	}
}
