package chart_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistration "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/replicas"
	"github.com/sonde-mesh/sonde/test/chart"
)

// only decodes the only manifest of a kind. It returns false without one.
func only(t *testing.T, kind string, into any, flags ...string) bool {
	t.Helper()
	return find(t, func(m chart.Manifest) bool { return m.Kind == kind }, into, flags...)
}

// named decodes the object of a kind and name.
func named(t *testing.T, kind, name string, into any, flags ...string) {
	t.Helper()
	if !find(t, func(m chart.Manifest) bool { return m.Kind == kind && m.Name == name }, into, flags...) {
		t.Fatalf("no %s %s", kind, name)
	}
}

func find(t *testing.T, is func(chart.Manifest) bool, into any, flags ...string) bool {
	t.Helper()
	all, err := chart.Render(t.Context(), flags...)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if is(m) {
			if err := m.Decode(into); err != nil {
				t.Fatal(err)
			}
			return true
		}
	}
	return false
}

func TestLint(t *testing.T) {
	if err := chart.Lint(); err != nil {
		t.Error(err)
	}
}

func TestWrongValuesAreNamed(t *testing.T) {
	tests := map[string]struct{ flag, want string }{
		"unknown value":                  {"--set=imagePullPolicy=Always", "'imagePullPolicy' not allowed"},
		"unknown image value":            {"--set=image.name=x", "'name' not allowed"},
		"pull policy":                    {"--set=image.pullPolicy=Sometimes", "/image/pullPolicy"},
		"text for a switch":              {"--set-string=config.injection.kumaLabels=false", "/config/injection/kumaLabels': got string, want boolean"},
		"another store":                  {"--set=config.store=dir:/x", "/config/store"},
		"an invalid timeout":             {"--set=webhook.timeoutSeconds=31", "/webhook/timeoutSeconds': maximum: got 31, want 30"},
		"an invalid peer":                {"--set=networkPolicy.agents[0].cidr=10.0.0.0/8", "'cidr' not allowed"},
		"an annotation that is not text": {"--set=webhook.annotations.a=1", "/webhook/annotations/a': got number, want string"},
		"an annotation twice":            {`--set=webhook.annotations.cert-manager\.io/inject-ca-from=a/b`, "webhook.annotations: cert-manager.io/inject-ca-from: must not be set"},
		"a CA without a source":          {"--set=webhook.certificate.injectCAFrom=a/b", "webhook.certificate.secretName: must be set with webhook.certificate.injectCAFrom"},
		"an invalid quantity":            {"--set=config.runtime.kubernetes.injector.sidecarMemory=128MB", "/config/runtime/kubernetes/injector/sidecarMemory': '128MB' does not match pattern"},
		"a negative quantity":            {"--set=config.runtime.kubernetes.injector.sidecarCpuLimit=-1", "/config/runtime/kubernetes/injector/sidecarCpuLimit': exclusiveMinimum: got -1, want 0"},
		"an invalid freeze mode":         {"--set=config.freeze.mode=on", "/config/freeze/mode': value must be one of 'enforce', 'dryRun', 'off'"},
		"an invalid mode":                {"--set=config.guardedLiveness.mode=on", "/config/guardedLiveness/mode': value must be one of 'enforce', 'dryRun', 'off'"},
		"off without quotes":             {"--set-json=config.guardedLiveness.mode=false", "/config/guardedLiveness/mode': value must be one of 'enforce', 'dryRun', 'off'"},
		"a limit below zero":             {"--set=config.guardedLiveness.perMinute=-1", "/config/guardedLiveness/perMinute': minimum: got -1, want 0"},
		"unknown limit":                  {"--set=config.guardedLiveness.perHour=1", "'perHour' not allowed"},
		"a workload without kind":        {"--set=config.guardedLiveness.blacklist.workloads={shop/web}", "/config/guardedLiveness/blacklist/workloads/0': 'shop/web' does not match pattern"},
		"a breaker of 0":                 {"--set=config.guardedLiveness.breaker.percent=0", "/config/guardedLiveness/breaker/percent': minimum: got 0, want 1"},
		"an image of sidecars":           {"--set=config.runtime.kubernetes.injector.sidecarImage=a:1", "config.runtime.kubernetes.injector.sidecarImage: must not be set: sidecars have the image of the control plane"},
		"what the chart sets":            {"--set=config.runtime.kubernetes.webhookCertDir=/x", "config.runtime.kubernetes.webhookCertDir: must not be set: the chart does"},
		"pods of the CNI plugin":         {"--set=cni.pods=some", "/cni/pods': value must be one of 'all', 'namespaces'"},
		"a relative directory":           {"--set=cni.pluginDir=bin", "/cni/pluginDir': 'bin' does not match pattern"},
		"CNI in the config":              {"--set=config.runtime.kubernetes.injector.cni=all", "config.runtime.kubernetes.injector.cni: must not be set: set cni.enabled and cni.pods"},
		"CNI by itself":                  {"--set=cni.enabled=true,controlPlane.enabled=false", "cni.enabled: must be false if controlPlane.enabled is false"},
		"no replica":                     {"--set=replicas=0", "/replicas': minimum: got 0, want 1"},
		"everybody as text":              {"--set=networkPolicy.agents=all", "/networkPolicy/agents"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := chart.Render(t.Context(), tc.flag); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
		})
	}
}

// The control plane satisfies the Pod Security level restricted.
func TestDeploymentIsRestricted(t *testing.T) {
	var d appsv1.Deployment
	only(t, "Deployment", &d, "--set=resources.limits.memory=1Gi")
	pod := d.Spec.Template.Spec
	if d := cmp.Diff(&corev1.PodSecurityContext{
		RunAsNonRoot: new(true), RunAsUser: new(int64(5678)), RunAsGroup: new(int64(5678)),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}, pod.SecurityContext); d != "" {
		t.Error(d)
	}
	for _, c := range pod.Containers {
		if d := cmp.Diff(&corev1.SecurityContext{
			AllowPrivilegeEscalation: new(bool), ReadOnlyRootFilesystem: new(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		}, c.SecurityContext); d != "" {
			t.Errorf("%s: %s", c.Name, d)
		}
		if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().String() != "1Gi" {
			t.Errorf("resources of %s: %+v", c.Name, c.Resources)
		}
	}
}

// The kubelet probes the intended endpoints, at the intended interval.
func TestProbes(t *testing.T) {
	var d appsv1.Deployment
	only(t, "Deployment", &d)
	c := d.Spec.Template.Spec.Containers[0]
	tests := map[string]struct {
		probe             *corev1.Probe
		path              string
		period, threshold int32
	}{
		"startup":   {c.StartupProbe, "/livez", 1, 120},
		"liveness":  {c.LivenessProbe, "/livez", 5, 3},
		"readiness": {c.ReadinessProbe, "/readyz", 1, 3},
	}
	for name, tc := range tests {
		if p := tc.probe; p.HTTPGet.Path != tc.path || p.HTTPGet.Port.StrVal != "health" || p.PeriodSeconds != tc.period || p.FailureThreshold != tc.threshold {
			t.Errorf("%s: %+v, want %+v", name, p, tc)
		}
	}
}

func TestNetworkPolicy(t *testing.T) {
	if only(t, "NetworkPolicy", &networkingv1.NetworkPolicy{}) {
		t.Error("the object exists by default")
	}
	const on = "--set=networkPolicy.enabled=true"
	tests := map[string]struct {
		flags []string
		want  string
	}{
		"defaults":      {nil, "5443 from all, 5678 from all"},
		"agents":        {[]string{"--set=networkPolicy.agents[0].namespaceSelector.matchLabels.mesh=yes"}, "5443 from all, 5678 from 1"},
		"metrics":       {[]string{"--set=networkPolicy.health[0].podSelector.matchLabels.app=a", "--set=networkPolicy.health[1].ipBlock.cidr=10.0.0.0/8"}, "5680 from 2, 5443 from all, 5678 from all"},
		"no API server": {[]string{"--set=networkPolicy.webhook=null"}, "5678 from all"},
		"sondectl":      {[]string{"--set-json=networkPolicy.admin=[]"}, "5443 from all, 5681 from all, 5678 from all"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var p networkingv1.NetworkPolicy
			only(t, "NetworkPolicy", &p, append(tc.flags, on)...)
			got := map[string]bool{}
			for _, rule := range p.Spec.Ingress {
				from := "all"
				if len(rule.From) > 0 {
					from = string(rune('0' + len(rule.From)))
				}
				got[rule.Ports[0].Port.String()+" from "+from] = true
			}
			want := map[string]bool{}
			for rule := range strings.SplitSeq(tc.want+", 5682 from 1", ", ") { // replicas are always allowed
				want[rule] = true
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// Replicas are spread over zones and nodes, and a drain of nodes never evicts all.
func TestReplicas(t *testing.T) {
	for flag, want := range map[string]int32{"": 2, "--set=replicas=1": 1, "--set=replicas=3": 3} {
		flags := strings.Fields(flag)
		var d appsv1.Deployment
		var budget policyv1.PodDisruptionBudget
		var peers corev1.Service
		only(t, "Deployment", &d, flags...)
		if got := *d.Spec.Replicas; got != want || d.Spec.Strategy.RollingUpdate.MaxUnavailable.IntValue() != 0 {
			t.Errorf("%s: %d replicas, %+v", flag, got, d.Spec.Strategy)
		}
		var over []string
		for _, c := range d.Spec.Template.Spec.TopologySpreadConstraints {
			over = append(over, c.TopologyKey)
		}
		for _, term := range d.Spec.Template.Spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			over = append(over, term.PodAffinityTerm.TopologyKey)
		}
		if diff := cmp.Diff([]string{corev1.LabelHostname, corev1.LabelTopologyZone}, over); diff != "" {
			t.Errorf("%s: spread (-want +got):\n%s", flag, diff)
		}
		if has := only(t, "PodDisruptionBudget", &budget, flags...); has != (want > 1) || has && budget.Spec.MaxUnavailable.IntValue() != 1 {
			t.Errorf("%s: budget %t, %+v", flag, has, budget.Spec)
		}
		named(t, "Service", "sonde-cp-peers", &peers, flags...)
		if peers.Spec.ClusterIP != corev1.ClusterIPNone || !peers.Spec.PublishNotReadyAddresses || peers.Spec.Ports[0].Port != mesh.PortPeers || peers.Spec.Ports[0].Name != replicas.Port {
			t.Errorf("%s: %+v", flag, peers.Spec)
		}
	}
}

// The admissions enforcer of AKS changes webhook configurations without this annotation, and Helm would not revert
// that.
func TestWebhookAnnotations(t *testing.T) {
	const enforcer = `webhook.annotations.admissions\.enforcer/disabled`
	tests := map[string]struct {
		flags []string
		want  map[string]string
	}{
		"by default":      {nil, map[string]string{"admissions.enforcer/disabled": "true"}},
		"and another one": {[]string{"--set=webhook.annotations.team=a"}, map[string]string{"admissions.enforcer/disabled": "true", "team": "a"}},
		"none":            {[]string{"--set=" + enforcer + "=null"}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var mutating admissionregistration.MutatingWebhookConfiguration
			var validating admissionregistration.ValidatingWebhookConfiguration
			only(t, "MutatingWebhookConfiguration", &mutating, tc.flags...)
			only(t, "ValidatingWebhookConfiguration", &validating, tc.flags...)
			for _, got := range []map[string]string{mutating.Annotations, validating.Annotations} {
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("annotations (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// If cert-manager writes the CA, the control plane does not, and has no right to.
func TestWebhookCertificate(t *testing.T) {
	const secret, inject = "--set=webhook.certificate.secretName=mine", "--set=webhook.certificate.injectCAFrom=a/b"
	tests := map[string]struct {
		flags             []string
		mounted, injected bool
	}{
		"our own":             {nil, false, false},
		"a Secret":            {[]string{secret}, true, false},
		"all of cert-manager": {[]string{secret, inject}, true, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var d appsv1.Deployment
			var role rbacv1.ClusterRole
			var configuration admissionregistration.MutatingWebhookConfiguration
			var config corev1.ConfigMap
			only(t, "Deployment", &d, tc.flags...)
			named(t, "ClusterRole", "sonde-cp", &role, tc.flags...)
			only(t, "MutatingWebhookConfiguration", &configuration, tc.flags...)
			only(t, "ConfigMap", &config, tc.flags...)
			file := config.Data["config.yaml"]
			if mounted := len(d.Spec.Template.Spec.Volumes) == 2; mounted != tc.mounted || strings.Contains(file, "webhookCertDir: /etc/sonde-webhook") != tc.mounted {
				t.Errorf("mounted %t, configuration:\n%s", mounted, file)
			}
			may := slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return r.APIGroups[0] == admissionregistration.GroupName })
			if may == tc.injected || strings.Contains(file, "webhookConfiguration: sonde") == tc.injected {
				t.Errorf("may write the CA: %t, configuration:\n%s", may, file)
			}
			if from := configuration.Annotations["cert-manager.io/inject-ca-from"]; (from == "a/b") != tc.injected {
				t.Errorf("annotation %q", from)
			}
			if configuration.Annotations["admissions.enforcer/disabled"] != "true" {
				t.Errorf("annotations %v", configuration.Annotations)
			}
		})
	}
}

// How the API server calls the webhooks (decision 020). test/admission checks which pods they
// select.
func TestWebhooks(t *testing.T) {
	service := func(path string) admissionregistration.WebhookClientConfig {
		return admissionregistration.WebhookClientConfig{Service: &admissionregistration.ServiceReference{
			Namespace: chart.Namespace, Name: "sonde-cp", Path: &path, Port: new(int32(5443)),
		}}
	}
	rule := func(group, version, resource string, scope admissionregistration.ScopeType, operations ...admissionregistration.OperationType) admissionregistration.RuleWithOperations {
		return admissionregistration.RuleWithOperations{Operations: operations, Rule: admissionregistration.Rule{
			APIGroups: []string{group}, APIVersions: []string{version}, Resources: []string{resource}, Scope: &scope,
		}}
	}
	const create, update, remove = admissionregistration.Create, admissionregistration.Update, admissionregistration.Delete
	tests := map[string][]string{
		"true":  {"namespace.inject.sonde.dev", "kuma-namespace.inject.sonde.dev", "pod.inject.sonde.dev"},
		"false": {"namespace.inject.sonde.dev", "pod.inject.sonde.dev"},
	}
	for kumaLabels, names := range tests {
		var mutating admissionregistration.MutatingWebhookConfiguration
		only(t, "MutatingWebhookConfiguration", &mutating, "--set=config.injection.kumaLabels="+kumaLabels)
		var want []admissionregistration.MutatingWebhook
		for _, name := range names {
			want = append(want, admissionregistration.MutatingWebhook{
				Name: name, ClientConfig: service("/inject"), Rules: []admissionregistration.RuleWithOperations{rule("", "v1", "pods", admissionregistration.NamespacedScope, create)},
				FailurePolicy: new(admissionregistration.Fail), SideEffects: new(admissionregistration.SideEffectClassNone), TimeoutSeconds: new(int32(3)),
				AdmissionReviewVersions: []string{"v1"}, ReinvocationPolicy: new(admissionregistration.IfNeededReinvocationPolicy),
			})
		}
		for i := range mutating.Webhooks {
			mutating.Webhooks[i].NamespaceSelector, mutating.Webhooks[i].MatchConditions = nil, nil
		}
		if d := cmp.Diff(want, mutating.Webhooks); d != "" {
			t.Errorf("injection, kumaLabels %s (-want +got):\n%s", kumaLabels, d)
		}
	}
	var validating admissionregistration.ValidatingWebhookConfiguration
	only(t, "ValidatingWebhookConfiguration", &validating)
	want := []admissionregistration.ValidatingWebhook{{
		Name: "validate.sonde.dev", ClientConfig: service("/validate"), Rules: []admissionregistration.RuleWithOperations{
			rule("sonde.dev", "v1alpha1", "meshes", admissionregistration.ClusterScope, create, update, remove),
			rule("sonde.dev", "v1alpha1", "dataplanes", admissionregistration.NamespacedScope, create, update),
		},
		FailurePolicy: new(admissionregistration.Fail), SideEffects: new(admissionregistration.SideEffectClassNone), TimeoutSeconds: new(int32(3)),
		AdmissionReviewVersions: []string{"v1"},
	}}
	if d := cmp.Diff(want, validating.Webhooks); d != "" {
		t.Errorf("validation (-want +got):\n%s", d)
	}
}
