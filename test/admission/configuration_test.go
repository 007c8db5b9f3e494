// Package admission_test runs the API server's own code on the webhooks of the chart.
package admission_test

import (
	"maps"
	"slices"
	"testing"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	plugin "k8s.io/apiserver/pkg/admission/plugin/webhook"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/sonde-mesh/sonde/test/chart"
	"github.com/sonde-mesh/sonde/webhook"
)

const (
	ownKey  = "sonde.dev/sidecar-injection"
	kumaKey = "kuma.io/sidecar-injection"
	mirror  = "kubernetes.io/config.mirror"
)

// configurations returns the chart's webhook configurations, with and without Kuma's labels.
func configurations(t *testing.T) (all []admissionregistration.MutatingWebhookConfiguration) {
	t.Helper()
	for _, kumaLabels := range []string{"true", "false"} {
		manifests, err := chart.Render(t.Context(), "--set=config.injection.kumaLabels="+kumaLabels)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range manifests {
			if m.Kind != "MutatingWebhookConfiguration" {
				continue
			}
			var c admissionregistration.MutatingWebhookConfiguration
			if err := m.Decode(&c); err != nil {
				t.Fatal(err)
			}
			all = append(all, c)
		}
	}
	if len(all) != 2 {
		t.Fatalf("the chart has %d configurations, want one each time", len(all))
	}
	return all
}

// entry is a webhook as the API server reads it.
type entry struct {
	plugin.WebhookAccessor
	compiler cel.ConditionCompiler
}

func (e entry) matches(t *testing.T, ns *webhook.Namespace, pod *corev1.Pod) bool {
	t.Helper()
	selector, err := e.GetParsedNamespaceSelector()
	if err != nil {
		t.Fatal(err)
	}
	ofNamespace := labels.Set{corev1.LabelMetadataName: ns.Name}
	maps.Copy(ofNamespace, ns.Labels)
	if !selector.Matches(ofNamespace) {
		return false
	}
	kind, resource := corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithResource("pods")
	attributes := admission.NewAttributesRecord(pod, nil, kind, ns.Name, pod.Name, resource, "", admission.Create, &metav1.CreateOptions{}, false, nil)
	result := e.GetCompiledMatcher(e.compiler).Match(t.Context(), &admission.VersionedAttributes{
		Attributes: attributes, VersionedKind: kind, VersionedObject: admission.NewLazyObject(pod),
	}, nil, nil)
	if result.Error != nil {
		t.Fatalf("%s: %v", e.GetName(), result.Error)
	}
	return result.Matches
}

// choices returns all ways to set some keys to values; "" means unset.
func choices(keys []string, values ...string) []map[string]string {
	all := []map[string]string{nil}
	for _, key := range keys {
		var more []map[string]string
		for _, m := range all {
			for _, value := range values {
				with := maps.Clone(m)
				if value != "" {
					if with == nil {
						with = map[string]string{}
					}
					with[key] = value
				}
				more = append(more, with)
			}
		}
		all = more
	}
	return all
}

// The API server calls the webhook for a pod if, and only if, the webhook injects or rejects the pod.
func TestConfigurationIsSelect(t *testing.T) {
	values := []string{"", "enabled", "true", "disabled", "false", "wrong"}
	compiler := cel.NewConditionCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	for i, configuration := range configurations(t) {
		o := webhook.Options{OwnLabelOnly: i == 1}
		var entries []entry
		for j := range configuration.Webhooks {
			w := &configuration.Webhooks[j]
			entries = append(entries, entry{plugin.NewMutatingWebhookAccessor(w.Name, configuration.Name, w), compiler})
		}
		called := 0
		for _, ofNamespace := range choices([]string{ownKey, kumaKey}, values...) {
			for _, ofPod := range choices([]string{ownKey, kumaKey}, values...) {
				for _, annotations := range append(choices([]string{ownKey, kumaKey}, "", "enabled", "disabled"), map[string]string{mirror: "x"}) {
					ns := &webhook.Namespace{Name: "shop", Labels: ofNamespace}
					pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: ofPod, Annotations: annotations}}
					calls := slices.ContainsFunc(entries, func(e entry) bool { return e.matches(t, ns, pod) })
					selection, err := webhook.Select(ns, pod, o)
					if calls {
						called++
					}
					switch {
					case selection.Injected && !calls:
						t.Fatalf("kumaLabels %t, namespace %v, pod %v, %v: is not called, but would inject", !o.OwnLabelOnly, ofNamespace, ofPod, annotations)
					case err != nil && !calls:
						t.Fatalf("kumaLabels %t, namespace %v, pod %v, %v: is not called, but would refuse: %v", !o.OwnLabelOnly, ofNamespace, ofPod, annotations, err)
					case calls && !selection.Injected && err == nil:
						t.Fatalf("kumaLabels %t, namespace %v, pod %v, %v: is called, and would do nothing", !o.OwnLabelOnly, ofNamespace, ofPod, annotations)
					}
				}
			}
		}
		if called == 0 {
			t.Error("the webhook is never called")
		}
	}
}

// The API server calls no webhook for a pod that cannot have a sidecar, even if it requests one, so that the pod can
// be created during an outage of the control plane.
func TestConfigurationLeavesUnsupportedPodsOut(t *testing.T) {
	compiler := cel.NewConditionCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	specs := map[string]corev1.PodSpec{
		"none":                          {},
		"the host network":              {HostNetwork: true},
		"Windows":                       {OS: &corev1.PodOS{Name: corev1.Windows}},
		"Linux":                         {OS: &corev1.PodOS{Name: corev1.Linux}},
		"nodes with Windows":            {NodeSelector: map[string]string{corev1.LabelOSStable: "windows"}},
		"nodes with Linux":              {NodeSelector: map[string]string{corev1.LabelOSStable: "linux"}},
		"a node selector without an OS": {NodeSelector: map[string]string{"pool": "a"}},
	}
	asks := map[string]string{ownKey: "enabled"}
	for _, configuration := range configurations(t) {
		for name, spec := range specs {
			for _, by := range []string{"namespace", "pod"} {
				ns, pod := &webhook.Namespace{Name: "shop"}, &corev1.Pod{Spec: spec}
				if by == "namespace" {
					ns.Labels = asks
				} else {
					pod.Labels = asks
				}
				selection, err := webhook.Select(ns, pod, webhook.Options{})
				if err != nil {
					t.Fatal(err)
				}
				called := slices.ContainsFunc(configuration.Webhooks, func(w admissionregistration.MutatingWebhook) bool {
					return entry{plugin.NewMutatingWebhookAccessor(w.Name, configuration.Name, &w), compiler}.matches(t, ns, pod)
				})
				if called != selection.Injected {
					t.Errorf("%s, %s asks: called %t, want %t", name, by, called, selection.Injected)
				}
			}
		}
	}
}

func TestConfigurationLeavesNamespacesOut(t *testing.T) {
	compiler := cel.NewConditionCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	for _, configuration := range configurations(t) {
		for i := range configuration.Webhooks {
			w := &configuration.Webhooks[i]
			e := entry{plugin.NewMutatingWebhookAccessor(w.Name, configuration.Name, w), compiler}
			for _, name := range []string{"kube-system", webhook.DefaultNamespace} {
				for _, key := range []string{ownKey, kumaKey} {
					enabled := map[string]string{key: "enabled"}
					pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: enabled}}
					if e.matches(t, &webhook.Namespace{Name: name, Labels: enabled}, pod) || e.matches(t, &webhook.Namespace{Name: name}, pod) {
						t.Errorf("%s is called for a pod in %s", w.Name, name)
					}
				}
			}
		}
	}
}
