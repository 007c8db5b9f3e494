package webhook_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/webhook"
)

func TestWhyNot(t *testing.T) {
	const own, kuma = "sonde.dev/sidecar-injection", "kuma.io/sidecar-injection"
	enabled := map[string]string{kuma: "enabled"}
	absent := func(why string) webhook.Absence { return webhook.Absence{Why: why} }
	missing := func(why string) webhook.Absence { return webhook.Absence{Why: why, Missing: true} }
	tests := map[string]struct {
		name      string // of the namespace
		namespace map[string]string
		pod, spec string
		ownOnly   bool
		want      webhook.Absence
	}{
		"nothing asks":       {"shop", nil, "", "", false, absent("it has no sidecar, and nothing asks for one: neither the pod nor namespace shop has sonde.dev/sidecar-injection or kuma.io/sidecar-injection")},
		"beside a Kuma":      {"shop", enabled, "", "", true, absent("it has no sidecar, and nothing asks for one: neither the pod nor namespace shop has sonde.dev/sidecar-injection")},
		"namespace disabled": {"shop", map[string]string{own: "disabled"}, "", "", false, absent("it has no sidecar: sonde.dev/sidecar-injection is disabled")},
		"pod disabled":       {"shop", enabled, "annotations: {" + kuma + `: "false"}`, "", false, absent("it has no sidecar: kuma.io/sidecar-injection is disabled")},
		"host network": {"shop", enabled, "", "hostNetwork: true, ", false, webhook.Absence{
			Why: "it has no sidecar: spec.hostNetwork: redirection would apply to the whole node", Warning: "spec.hostNetwork: redirection would apply to the whole node: not injected",
		}},
		"kube-system": {"kube-system", enabled, "", "", false, absent("it has no sidecar: pods of namespace kube-system are not injected")},
		"asked for in kube-system": {"kube-system", nil, "labels: {" + own + ": enabled}", "", false, webhook.Absence{
			Why: "it has no sidecar: pods of namespace kube-system are not injected", Warning: "pods of namespace kube-system are not injected: not injected",
		}},
		"control plane":        {"sonde-system", enabled, "", "", false, absent("it has no sidecar: pods of namespace sonde-system are not injected")},
		"older than the label": {"shop", enabled, "", "", false, missing("it has no sidecar although kuma.io/sidecar-injection of namespace shop asks for one: it was created before the label was set, or without the webhook")},
		"asks itself":          {"shop", nil, "labels: {" + own + ": enabled}", "", false, missing("it has no sidecar although sonde.dev/sidecar-injection of the pod asks for one: it was created before the label was set, or without the webhook")},
		"a wrong value":        {"shop", map[string]string{kuma: "maybe"}, "", "", false, absent(`it has no sidecar, and the webhook would reject it now: namespace shop: metadata.labels["kuma.io/sidecar-injection"]: "maybe": must be enabled or disabled`)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := parse("metadata: {" + tc.pod + "}\nspec: {" + tc.spec + "containers: [{name: app}]}")
			got := webhook.WhyNot(&webhook.Namespace{Name: tc.name, Labels: tc.namespace}, pod, webhook.Options{OwnLabelOnly: tc.ownOnly})
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("WhyNot() (-want +got):\n%s", diff)
			}
		})
	}
}
