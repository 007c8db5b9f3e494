package check

import (
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/cmd/sondectl/cluster"
)

func replica(namespace, name, release string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: named(name, map[string]string{"app.kubernetes.io/name": "sonde", "app.kubernetes.io/instance": release})}
	p.Namespace = namespace
	return p
}

func TestControlPlanes(t *testing.T) {
	one, two := replica("sonde-system", "sonde-cp-a", "sonde"), replica("second", "sonde-cp-b", "other")
	sonde := cluster.Plane{Namespace: "sonde-system", Release: "sonde"}
	tests{
		"none": {facts{pods: is([]corev1.Pod{{}})}, "[ok]   control planes: none installed yet\n"},
		"one to upgrade": {facts{pods: is([]corev1.Pod{one})}, `
[warn] control planes: release "sonde" in namespace "sonde-system" is already installed
       do: check it with --installed, or upgrade it with helm upgrade
`},
		"one elsewhere": {facts{pods: is([]corev1.Pod{two})}, `
[fail] control planes: the cluster already has a control plane: a second one would overwrite its webhook configurations and ClusterRoles
       release "other" in namespace "second"
       do: upgrade the existing one, and check it with --installed --control-plane-namespace
`},
		"installed": {facts{installed: true, plane: sonde, pods: is([]corev1.Pod{one})}, "[ok]   control planes: release \"sonde\" in namespace \"sonde-system\" alone\n"},
		"two installed": {facts{installed: true, plane: sonde, pods: is([]corev1.Pod{one, two})}, `
[fail] control planes: the cluster has another control plane: both inject pods, and each overwrites the other's webhook configurations and ClusterRoles
       release "other" in namespace "second"
       do: uninstall one of them with helm
`},
		"its pods have just gone": {facts{installed: true, plane: sonde}, "[ok]   control planes: release \"sonde\" in namespace \"sonde-system\" alone\n"},
	}.run(t, controlPlanes)
}

// configuration returns webhooks for pods, one for each label.
func configuration(name string, labels ...string) admissionv1.MutatingWebhookConfiguration {
	c := admissionv1.MutatingWebhookConfiguration{ObjectMeta: named(name, nil)}
	for _, label := range labels {
		c.Webhooks = append(c.Webhooks, admissionv1.MutatingWebhook{
			Name:              label + ".example",
			NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: label, Operator: metav1.LabelSelectorOpIn, Values: []string{"enabled"}}}},
			Rules:             []admissionv1.RuleWithOperations{{Rule: admissionv1.Rule{Resources: []string{"pods"}}}},
		})
	}
	return c
}

// ours returns the chart's configuration, with or without Kuma's label.
func ours(kumaLabels bool) admissionv1.MutatingWebhookConfiguration {
	c := configuration(configurationName, "sonde.dev/sidecar-injection")
	c.Webhooks[0].Name = "namespace.inject.sonde.dev"
	if kumaLabels {
		c.Webhooks = append(c.Webhooks, admissionv1.MutatingWebhook{Name: "kuma-namespace.inject.sonde.dev"})
	}
	return c
}

func configurations(all ...admissionv1.MutatingWebhookConfiguration) read[[]admissionv1.MutatingWebhookConfiguration] {
	return is(all)
}

func TestOtherMeshes(t *testing.T) {
	kuma := configuration("kuma-admission-mutating-webhook-configuration", "kuma.io/sidecar-injection")
	istio := configuration("istio-sidecar-injector", "istio-injection", "istio.io/rev")
	services := configuration("of-services", "istio-injection")
	services.Webhooks[0].Rules[0].Resources = []string{"services"}
	linkerd, consul := configuration("linkerd-proxy-injector-webhook-config", "x"), configuration("consul-connect-injector", "x")
	linkerd.Webhooks[0].Name, consul.Webhooks[0].Name = "linkerd-proxy-injector.linkerd.io", "consul-connect-injector.consul.hashicorp.com"
	asks := func(name, value string) corev1.Namespace {
		ns := corev1.Namespace{ObjectMeta: named(name, map[string]string{"sonde.dev/sidecar-injection": "enabled"})}
		ns.Annotations = map[string]string{"linkerd.io/inject": value}
		return ns
	}
	annotated := is([]corev1.Namespace{asks("shop", "enabled"), asks("ingress", "ingress"), asks("none", "disabled")})
	both := is([]corev1.Namespace{
		{ObjectMeta: named("shop", map[string]string{"istio-injection": "enabled", "sonde.dev/sidecar-injection": "enabled"})},
		{ObjectMeta: named("revised", map[string]string{"istio.io/rev": "canary", "kuma.io/sidecar-injection": "true"})},
		{ObjectMeta: named("one", map[string]string{"istio-injection": "enabled", "sonde.dev/sidecar-injection": "disabled"})},
	})
	tests{
		"none": {facts{mutating: configurations(ours(true), configuration("policy", "team"), services)}, "[ok]   other meshes: no other mesh injects pods\n"},
		"Kuma, before an installation": {facts{mutating: configurations(kuma)}, `
[warn] other meshes: Kuma and Sonde both read kuma.io/sidecar-injection: pods get the sidecar of Kuma, and Sonde does not inject them
       MutatingWebhookConfiguration kuma-admission-mutating-webhook-configuration
       do: install with --set config.injection.kumaLabels=false: then kuma.io/sidecar-injection belongs to Kuma, and sonde.dev/sidecar-injection to Sonde
`},
		"Kuma, with its label": {facts{installed: true, mutating: configurations(kuma, ours(true))}, `
[fail] other meshes: Kuma and Sonde both read kuma.io/sidecar-injection: pods get the sidecar of Kuma, and Sonde does not inject them
       MutatingWebhookConfiguration kuma-admission-mutating-webhook-configuration
       do: install with --set config.injection.kumaLabels=false: then kuma.io/sidecar-injection belongs to Kuma, and sonde.dev/sidecar-injection to Sonde
`},
		"Kuma, mended": {
			facts{installed: true, mutating: configurations(kuma, ours(false))},
			"[ok]   other meshes: Kuma is installed (MutatingWebhookConfiguration kuma-admission-mutating-webhook-configuration): kuma.io/sidecar-injection belongs to Kuma, and sonde.dev/sidecar-injection to Sonde\n",
		},
		"Istio, and namespaces that ask both": {facts{mutating: configurations(istio), namespaces: both}, `
[fail] other meshes: namespaces ask for the sidecars of both Istio and Sonde: Sonde does not inject pods that already have the other sidecar
       revised
       shop
       do: remove one of the labels: istio-injection, istio.io/rev belongs to Istio, and sonde.dev/sidecar-injection, kuma.io/sidecar-injection to Sonde
`},
		"meshes whose webhooks select no label": {facts{mutating: configurations(linkerd, consul), namespaces: annotated}, `
[ok]   other meshes: Consul is installed (MutatingWebhookConfiguration consul-connect-injector): consul.hashicorp.com/connect-inject belongs to Consul, and sonde.dev/sidecar-injection, kuma.io/sidecar-injection to Sonde
[fail] other meshes: namespaces ask for the sidecars of both Linkerd and Sonde: Sonde does not inject pods that already have the other sidecar
       ingress
       shop
       do: remove one of the labels: linkerd.io/inject belongs to Linkerd, and sonde.dev/sidecar-injection, kuma.io/sidecar-injection to Sonde
`},
		"Istio": {
			facts{mutating: configurations(istio)},
			"[ok]   other meshes: Istio is installed (MutatingWebhookConfiguration istio-sidecar-injector): istio-injection, istio.io/rev belongs to Istio, and sonde.dev/sidecar-injection, kuma.io/sidecar-injection to Sonde\n",
		},
	}.run(t, otherMeshes)
}
