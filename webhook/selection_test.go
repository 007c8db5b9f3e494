package webhook_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/webhook"
)

func TestSelect(t *testing.T) {
	const own, kuma = "sonde.dev/sidecar-injection", "kuma.io/sidecar-injection"
	label := func(key, value string) string { return `labels: {` + key + `: "` + value + `"}` }
	annotation := func(key, value string) string { return `annotations: {` + key + `: "` + value + `"}` }
	yes := webhook.Selection{Injected: true}
	disabledBy := func(key string) webhook.Selection { return webhook.Selection{Why: key + " is disabled"} }
	var no webhook.Selection
	tests := map[string]struct {
		namespace map[string]string
		pod       string // metadata
		spec      string
		ownOnly   bool
		want      webhook.Selection
	}{
		"no labels":                       {nil, "", "", false, no},
		"namespace":                       {map[string]string{kuma: "enabled"}, "", "", false, yes},
		"namespace, true":                 {map[string]string{kuma: "true"}, "", "", false, yes},
		"namespace, own":                  {map[string]string{own: "enabled"}, "", "", false, yes},
		"namespace, own wins":             {map[string]string{own: "enabled", kuma: "disabled"}, "", "", false, yes},
		"namespace, own wins against":     {map[string]string{own: "false", kuma: "enabled"}, "", "", false, disabledBy(own)},
		"namespace disabled":              {map[string]string{kuma: "disabled"}, "", "", false, disabledBy(kuma)},
		"pod wins, label":                 {map[string]string{kuma: "enabled"}, label(kuma, "disabled"), "", false, disabledBy(kuma)},
		"pod wins, annotation":            {map[string]string{kuma: "enabled"}, annotation(kuma, "false"), "", false, disabledBy(kuma)},
		"pod wins, enabled":               {map[string]string{kuma: "disabled"}, label(kuma, "enabled"), "", false, yes},
		"pod wins, nothing else":          {nil, annotation(kuma, "true"), "", false, yes},
		"pod wins against the own key":    {map[string]string{own: "enabled"}, label(kuma, "disabled"), "", false, disabledBy(kuma)},
		"pod, own wins":                   {nil, "labels: {" + own + ": enabled, " + kuma + ": disabled}", "", false, yes},
		"pod, own wins as annotation":     {nil, annotation(own, "disabled") + ", " + label(kuma, "enabled"), "", false, disabledBy(own)},
		"pod, in two spellings":           {nil, label(kuma, "true") + ", " + annotation(kuma, "enabled"), "", false, yes},
		"a Kuma's namespace":              {map[string]string{kuma: "enabled"}, "", "", true, no},
		"a Kuma's pod":                    {map[string]string{own: "enabled"}, label(kuma, "disabled"), "", true, yes},
		"a Kuma's pod, and nothing":       {nil, label(kuma, "enabled"), "", true, no},
		"a Kuma's pod with a wrong value": {map[string]string{own: "enabled"}, label(kuma, "x"), "", true, yes},
		"mirror":                          {map[string]string{kuma: "enabled"}, annotation("kubernetes.io/config.mirror", "x"), "", false, webhook.Selection{Why: "it is the mirror pod of a static pod"}},
		"host network":                    {map[string]string{kuma: "enabled"}, "", "hostNetwork: true, ", false, webhook.Selection{Why: "spec.hostNetwork: redirection would apply to the whole node", Warn: true}},
		"host network, not asked":         {nil, "", "hostNetwork: true, ", false, no},
		"host network, and disabled":      {map[string]string{kuma: "enabled"}, label(kuma, "disabled"), "hostNetwork: true, ", false, disabledBy(kuma)},
		"host network, a wrong value":     {nil, label(kuma, "x"), "hostNetwork: true, ", false, webhook.Selection{Why: "spec.hostNetwork: redirection would apply to the whole node", Warn: true}},
		"windows, by node":                {map[string]string{kuma: "x"}, "", "nodeSelector: {kubernetes.io/os: windows}, ", false, webhook.Selection{Why: "spec.nodeSelector: there is no sidecar for Windows", Warn: true}},
		"windows":                         {map[string]string{kuma: "enabled"}, "", "os: {name: windows}, ", false, webhook.Selection{Why: "spec.os: there is no sidecar for Windows", Warn: true}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := parse("metadata: {" + tc.pod + "}\nspec: {" + tc.spec + "containers: [{name: app}]}")
			ns := &webhook.Namespace{Name: "shop", Labels: tc.namespace}
			got, err := webhook.Select(ns, pod, webhook.Options{OwnLabelOnly: tc.ownOnly})
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Errorf("Select() = %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestSelectNever(t *testing.T) {
	all := map[string]string{"kuma.io/sidecar-injection": "enabled", "sonde.dev/sidecar-injection": "enabled"}
	for _, name := range []string{"kube-system", "mesh"} {
		for text, warn := range map[string]bool{"": false, "kuma.io/sidecar-injection: enabled": true} {
			got, err := webhook.Select(&webhook.Namespace{Name: name, Labels: all}, podWith(text, ""), webhook.Options{ControlPlaneNamespace: "mesh"})
			want := webhook.Selection{Why: "pods of namespace " + name + " are not injected", Warn: warn}
			if got != want || err != nil {
				t.Errorf("Select() in %s = %+v, %v, want %+v", name, got, err, want)
			}
		}
	}
	if got, err := webhook.Select(&webhook.Namespace{Name: "sonde-system", Labels: all}, podWith("", ""), webhook.Options{}); got.Injected || err != nil {
		t.Errorf("Select() in the default namespace of the control plane = %+v, %v", got, err)
	}
}

func TestSelectBadValues(t *testing.T) {
	tests := map[string]struct {
		namespace map[string]string
		pod       string
		want      string
	}{
		"namespace":           {map[string]string{"kuma.io/sidecar-injection": "yes"}, "", `namespace shop: metadata.labels["kuma.io/sidecar-injection"]: "yes": must be enabled or disabled`},
		"label":               {nil, `labels: {kuma.io/sidecar-injection: "on"}`, `metadata.labels["kuma.io/sidecar-injection"]: "on": must be enabled or disabled`},
		"both, and different": {nil, `labels: {kuma.io/sidecar-injection: enabled}, annotations: {kuma.io/sidecar-injection: disabled}`, `metadata.annotations["kuma.io/sidecar-injection"]: "disabled": the label with the same name is "enabled"`},
		"both bad":            {nil, `labels: {sonde.dev/sidecar-injection: a}, annotations: {sonde.dev/sidecar-injection: b}`, `metadata.annotations["sonde.dev/sidecar-injection"]: "b": must be`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := parse("metadata: {" + tc.pod + "}\nspec: {containers: [{name: app}]}")
			got, err := webhook.Select(&webhook.Namespace{Name: "shop", Labels: tc.namespace}, pod, webhook.Options{})
			if err == nil || !strings.Contains(err.Error(), tc.want) || got.Injected {
				t.Errorf("Select() = %+v, %v, want %q", got, err, tc.want)
			}
		})
	}
}
