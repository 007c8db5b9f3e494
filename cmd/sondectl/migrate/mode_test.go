package migrate

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// podOf decodes a pod.
func podOf(t *testing.T, text string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(text), pod); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return pod
}

func TestSidecar(t *testing.T) {
	const (
		kuma  = "spec: {containers: [{name: app}, {name: kuma-sidecar}]"
		init  = ", initContainers: [{name: kuma-init, args: "
		istio = "spec: {containers: [{name: app}, {name: istio-proxy, env: [{name: ISTIO_KUBE_APP_PROBERS, value: '{}'}]}]"
	)
	notes := func(values string) string { return "metadata: {annotations: {" + values + "}}\n" }
	tests := map[string]struct {
		pod      string
		want     Mode
		port     int32
		captures map[int32]bool
	}{
		"no sidecar":                 {"spec: {containers: [{name: app}]}", None, 0, map[int32]bool{80: false}},
		"sonde":                      {"spec: {containers: [{name: app}], volumes: [{name: sonde-identity}]}", Unified, 0, map[int32]bool{80: true}},
		"sonde, unified":             {notes("sonde.dev/virtual-probes-mode: unified") + "spec: {volumes: [{name: sonde-identity}]}", Unified, 0, nil},
		"sonde, per-port":            {notes("sonde.dev/virtual-probes-mode: per-port") + "spec: {volumes: [{name: sonde-identity}]}", PerPort, 0, nil},
		"sonde, a mode of tomorrow":  {notes("sonde.dev/virtual-probes-mode: both") + "spec: {volumes: [{name: sonde-identity}]}", Unknown, 0, nil},
		"sonde, disabled":            {"spec: {containers: [{name: kuma-sidecar, args: [--virtual-probes-port=0]}], volumes: [{name: sonde-identity}]}", Unrewritten, 0, nil},
		"sonde, without HTTP probes": {notes("sonde.dev/virtual-probes-mode: per-port") + "spec: {containers: [{name: kuma-sidecar, args: [--virtual-probes-port=0, --virtual-probes-mode=per-port]}], volumes: [{name: sonde-identity}]}", PerPort, 0, nil},
		"sonde, excluded":            {notes(`traffic.kuma.io/exclude-inbound-ports: "80, 81"`) + "spec: {volumes: [{name: sonde-identity}]}", Unified, 0, map[int32]bool{80: false, 81: false, 82: true}},
		"sonde, a gateway":           {"spec: {initContainers: [{name: kuma-init, args: [--redirect-inbound=false]}], volumes: [{name: sonde-identity}]}", Unified, 0, map[int32]bool{80: false}},
		"sonde's beside Istio's":     {"spec: {containers: [{name: istio-proxy}], volumes: [{name: sonde-identity}]}", Unified, 0, nil},
		"kuma 2.7":                   {notes(`kuma.io/virtual-probes: enabled, kuma.io/virtual-probes-port: "19000"`) + kuma + "}", KumaVirtual, 19000, map[int32]bool{80: true}},
		"kuma 2.7, true":             {notes(`kuma.io/virtual-probes: "true", kuma.io/virtual-probes-port: "9000"`) + kuma + "}", KumaVirtual, 9000, nil},
		"kuma 2.7, disabled":         {notes(`kuma.io/virtual-probes: disabled, kuma.io/virtual-probes-port: "9000"`) + kuma + "}", KumaUnrewritten, 0, nil},
		"kuma 2.9":                   {notes(`kuma.io/application-probe-proxy-port: "9001", kuma.io/virtual-probes: enabled, kuma.io/virtual-probes-port: "9000"`) + kuma + "}", KumaProxy, 9001, nil},
		"kuma 2.9, proxy off":        {notes(`kuma.io/application-probe-proxy-port: "0", kuma.io/virtual-probes: enabled, kuma.io/virtual-probes-port: "9000"`) + kuma + "}", KumaVirtual, 9000, nil},
		"kuma 3.0, proxy off":        {notes(`kuma.io/application-probe-proxy-port: "0"`) + kuma + "}", KumaUnrewritten, 0, nil},
		"kuma, native":               {notes(`kuma.io/application-probe-proxy-port: "9001"`) + "spec: {initContainers: [{name: kuma-sidecar}], containers: [{name: app}]}", KumaProxy, 9001, nil},
		"kuma, nonsense":             {notes(`kuma.io/application-probe-proxy-port: x, kuma.io/virtual-probes-port: "70000", kuma.io/virtual-probes: enabled`) + kuma + "}", KumaUnrewritten, 0, nil},
		"kuma, a gateway":            {notes(`kuma.io/gateway: enabled`) + kuma + "}", KumaUnrewritten, 0, map[int32]bool{80: false}},
		"kuma, excluded":             {notes(`traffic.kuma.io/exclude-inbound-ports: "80"`) + kuma + "}", KumaUnrewritten, 0, map[int32]bool{80: false, 81: true}},
		"kuma, excluded by argument": {notes(`kuma.io/application-probe-proxy-port: "9001"`) + kuma + init + `["--exclude-inbound-ports=9001,80"]}]}`, KumaProxy, 9001, map[int32]bool{80: false, 81: true}},
		"kuma, excluded by two":      {kuma + init + `[--exclude-inbound-ports, "80"]}]}`, KumaUnrewritten, 0, map[int32]bool{80: false, 81: true}},
		"kuma, not redirected":       {kuma + init + `[--redirect-inbound=false]}]}`, KumaUnrewritten, 0, map[int32]bool{80: false}},
		"kuma, excluded in a config": {kuma + init + `[--config, "redirect: {inbound: {excludePorts: [80]}}"]}]}`, KumaUnrewritten, 0, map[int32]bool{80: false, 81: true}},
		"kuma, a config elsewhere":   {kuma + init + `[--config=/tmp/transparent-proxy/base/config.yaml]}]}`, KumaUnrewritten, 0, map[int32]bool{80: true}},
		"kuma 3.0, excluded":         {notes(`traffic.kuma.io/transparent-proxy-config: "{redirect: {inbound: {enabled: true, excludePorts: [80]}}}"`) + kuma + "}", KumaUnrewritten, 0, map[int32]bool{80: false, 81: true}},
		"kuma 3.0, not redirected":   {notes(`traffic.kuma.io/transparent-proxy-config: "{redirect: {inbound: {enabled: false}}}"`) + kuma + "}", KumaUnrewritten, 0, map[int32]bool{80: false}},
		"kuma 3.0, unreadable":       {notes(`traffic.kuma.io/transparent-proxy-config: "{"`) + kuma + "}", KumaUnrewritten, 0, map[int32]bool{80: true}},
		"istio":                      {istio + "}", Istio, 15020, map[int32]bool{80: true}},
		"istio, own status port":     {notes(`status.sidecar.istio.io/port: "15520"`) + istio + "}", Istio, 15520, nil},
		"istio, nothing to rewrite":  {notes(`sidecar.istio.io/rewriteAppHTTPProbers: "true"`) + "spec: {containers: [{name: istio-proxy}]}", Istio, 15020, nil},
		"istio, not rewritten":       {notes(`sidecar.istio.io/rewriteAppHTTPProbers: "false"`) + "spec: {containers: [{name: istio-proxy}]}", IstioUnrewritten, 0, nil},
		"istio, native":              {"spec: {initContainers: [{name: istio-proxy, env: [{name: ISTIO_KUBE_APP_PROBERS, value: '{}'}]}]}", Istio, 15020, nil},
		"istio, excluded":            {notes(`traffic.sidecar.istio.io/excludeInboundPorts: "80"`) + istio + "}", Istio, 15020, map[int32]bool{80: false, 81: true}},
		"istio, included":            {notes(`traffic.sidecar.istio.io/includeInboundPorts: "80"`) + istio + "}", Istio, 15020, map[int32]bool{80: true, 81: false}},
		"istio, all included":        {notes(`traffic.sidecar.istio.io/includeInboundPorts: "*"`) + istio + "}", Istio, 15020, map[int32]bool{80: true}},
		"istio, none included":       {notes(`traffic.sidecar.istio.io/includeInboundPorts: ""`) + istio + "}", Istio, 15020, map[int32]bool{80: false}},
		"istio, none redirected":     {notes(`sidecar.istio.io/interceptionMode: NONE`) + istio + "}", Istio, 15020, map[int32]bool{80: false}},
		"istio, by arguments":        {istio + `, initContainers: [{name: istio-init, args: [istio-iptables, -b, "80,81", -d, "81"]}]}`, Istio, 15020, map[int32]bool{80: true, 81: false, 82: false}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := sidecarOf(podOf(t, tc.pod))
			if s.mode != tc.want || s.port != tc.port {
				t.Errorf("mode %s, port %d, want %s, %d", s.mode, s.port, tc.want, tc.port)
			}
			for port, want := range tc.captures {
				if got := s.captures(port); got != want {
					t.Errorf("captures(%d) = %v, want %v", port, got, want)
				}
			}
		})
	}
}

func TestMeshes(t *testing.T) {
	const sonde = "volumes: [{name: sonde-identity}], "
	tests := map[string]struct {
		pod  string
		want []string
	}{
		"none":             {"spec: {containers: [{name: app}]}", nil},
		"sonde":            {"spec: {" + sonde + "initContainers: [{name: kuma-sidecar}]}", []string{"Sonde"}},
		"sonde and istio":  {"spec: {" + sonde + "initContainers: [{name: kuma-sidecar}], containers: [{name: istio-proxy}]}", []string{"Sonde", "Istio"}},
		"sonde and kuma":   {"spec: {" + sonde + "initContainers: [{name: kuma-sidecar}], containers: [{name: kuma-sidecar}]}", []string{"Sonde", "Kuma"}},
		"kuma and istio":   {"spec: {initContainers: [{name: istio-proxy}], containers: [{name: kuma-sidecar}]}", []string{"Kuma", "Istio"}},
		"all":              {"spec: {" + sonde + "containers: [{name: kuma-sidecar}, {name: istio-proxy}, {name: kuma-sidecar}]}", []string{"Sonde", "Kuma", "Istio"}},
		"istio":            {"spec: {containers: [{name: istio-proxy}]}", []string{"Istio"}},
		"left from others": {"spec: {" + sonde + "initContainers: [{name: istio-validation}]}", []string{"Sonde"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := podOf(t, tc.pod)
			if diff := cmp.Diff(tc.want, meshesOf(pod)); diff != "" {
				t.Errorf("meshesOf() (-want +got):\n%s", diff)
			}
			found := slices.ContainsFunc(findingsOf(pod, sidecarOf(pod)), func(f Finding) bool { return f.Code == TwoMeshes })
			if want := len(tc.want) > 1; found != want {
				t.Errorf("%s is found: %v, want %v", TwoMeshes, found, want)
			}
		})
	}
}
