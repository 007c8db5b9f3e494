package webhook_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// TestProbeProxyPort checks the annotation of Kuma's application probe proxy, also in a second injection, after the
// first one has added an annotation of Sonde.
func TestProbeProxyPort(t *testing.T) {
	const field = `metadata.annotations["kuma.io/application-probe-proxy-port"]: `
	asPort := field + `"19000": Kuma's annotation is read as kuma.io/virtual-probes-port, which replaces it and takes precedence`
	asSwitch := field + `"0": Kuma's annotation is read as kuma.io/virtual-probes: disabled, which replaces it and takes precedence`
	tests := map[string]struct {
		annotations string
		wantPort    string // of the sidecar
		wantWarning string
	}{
		"a port":                          {`kuma.io/application-probe-proxy-port: "19000"`, "19000", asPort},
		"0":                               {`kuma.io/application-probe-proxy-port: "0"`, "0", asSwitch},
		"a port, and Sonde's":             {`kuma.io/application-probe-proxy-port: "19000", kuma.io/virtual-probes-port: "9500"`, "9500", asPort},
		"0, and Sonde's":                  {`kuma.io/application-probe-proxy-port: "0", kuma.io/virtual-probes-port: "9500"`, "0", asSwitch},
		"0, and probes are enabled":       {`kuma.io/application-probe-proxy-port: "0", kuma.io/virtual-probes: enabled`, "9000", asSwitch},
		"a port, and probes are disabled": {`kuma.io/application-probe-proxy-port: "19000", kuma.io/virtual-probes: disabled`, "0", asPort},
		"the default of Sonde":            {`kuma.io/application-probe-proxy-port: "9000"`, "9000", field + `"9000": Kuma's annotation is read as kuma.io/virtual-probes-port, which replaces it and takes precedence`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			once, warnings := inject(t, podWith(tc.annotations, "livenessProbe: {exec: {command: [echo]}}"), webhook.Options{})
			if !slices.Equal(warnings, []string{tc.wantWarning}) {
				t.Errorf("warnings = %q, want %q alone", warnings, tc.wantWarning)
			}
			sidecar := once.Spec.InitContainers[slices.IndexFunc(once.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == mesh.ContainerSidecar })]
			if got := argument(t, sidecar, "--virtual-probes-port"); got != tc.wantPort {
				t.Errorf("virtual port = %s, want %s", got, tc.wantPort)
			}
			if got := once.Annotations[mesh.AnnotationVirtualProbesPort]; tc.wantPort != "0" && got != tc.wantPort {
				t.Errorf("%s = %s, want %s", mesh.AnnotationVirtualProbesPort, got, tc.wantPort)
			}
			twice, again := inject(t, once, webhook.Options{})
			if diff := cmp.Diff(once, twice); diff != "" || !slices.Equal(again, warnings) {
				t.Errorf("a second injection warns %q and changes:\n%s", again, diff)
			}
		})
	}
}
