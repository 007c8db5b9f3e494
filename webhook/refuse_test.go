package webhook_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

func TestBadPods(t *testing.T) {
	const dead = "port 9000 cannot be the virtual probes' port: containers[app].ports uses it; no port from 9001 to 9020 is free"
	var all []string
	for port := 9000; port <= 9020; port++ {
		all = append(all, fmt.Sprintf("{containerPort: %d}", port))
	}
	full := "ports: [" + strings.Join(all, ", ") + "]"
	tests := map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"virtual-probes":             {podWith(`kuma.io/virtual-probes: maybe`, ""), `metadata.annotations["kuma.io/virtual-probes"]: "maybe": must be enabled or disabled`},
		"virtual-probes empty":       {podWith(`kuma.io/virtual-probes: ""`, ""), `metadata.annotations["kuma.io/virtual-probes"]: must be enabled`},
		"port no number":             {podWith(`kuma.io/virtual-probes-port: http`, ""), `metadata.annotations["kuma.io/virtual-probes-port"]: "http": must be a port`},
		"port 0":                     {podWith(`kuma.io/virtual-probes-port: "0"`, ""), `"0": must be a port`},
		"port too high":              {podWith(`kuma.io/virtual-probes-port: "65536"`, ""), `"65536": must be a port`},
		"port with space":            {podWith(`kuma.io/virtual-probes-port: " 9000"`, ""), `must be a port`},
		"Kuma's port no number":      {podWith(`kuma.io/application-probe-proxy-port: http`, ""), `metadata.annotations["kuma.io/application-probe-proxy-port"]: "http": must be a port from 1 to 65535, or 0 for none`},
		"Kuma's port empty":          {podWith(`kuma.io/application-probe-proxy-port: ""`, ""), `metadata.annotations["kuma.io/application-probe-proxy-port"]: must be a port`},
		"Kuma's port too high":       {podWith(`kuma.io/application-probe-proxy-port: "65536"`, ""), `"65536": must be a port`},
		"Kuma's port 00":             {podWith(`kuma.io/application-probe-proxy-port: "00"`, ""), `"00": must be a port`},
		"Kuma's port is declared":    {podWith(`kuma.io/application-probe-proxy-port: "8080"`, "ports: [{containerPort: 8080}]"), `metadata.annotations["kuma.io/application-probe-proxy-port"]: port 8080 cannot be the virtual probes' port: containers[app].ports uses it`},
		"range without end":          {podWith(`kuma.io/virtual-probes-port-range: "9000"`, ""), `metadata.annotations["kuma.io/virtual-probes-port-range"]: "9000": must be two ports`},
		"range backwards":            {podWith(`kuma.io/virtual-probes-port-range: 9020-9000`, ""), `must be two ports`},
		"range of names":             {podWith(`kuma.io/virtual-probes-port-range: a-b`, ""), `must be two ports`},
		"exclude inbound":            {podWith(`traffic.kuma.io/exclude-inbound-ports: "80,http"`, ""), `metadata.annotations["traffic.kuma.io/exclude-inbound-ports"]: "80,http": must be ports`},
		"exclude readiness":          {podWith(`traffic.kuma.io/exclude-inbound-ports: "80,15022"`, ""), `metadata.annotations["traffic.kuma.io/exclude-inbound-ports"]: "80,15022": must not contain 15022`},
		"exclude inbound comma":      {podWith(`traffic.kuma.io/exclude-inbound-ports: "80,"`, ""), `must be ports`},
		"exclude outbound":           {podWith(`traffic.kuma.io/exclude-outbound-ports: "0"`, ""), `metadata.annotations["traffic.kuma.io/exclude-outbound-ports"]: "0": must be ports`},
		"server first":               {podWith(`sonde.dev/server-first-ports: mysql`, ""), `metadata.annotations["sonde.dev/server-first-ports"]: "mysql": must be ports`},
		"drain time":                 {podWith(`kuma.io/sidecar-drain-time: soon`, ""), `metadata.annotations["kuma.io/sidecar-drain-time"]: "soon": must be a duration`},
		"drain time 0":               {podWith(`kuma.io/sidecar-drain-time: 0s`, ""), `must be a duration from 1s to 1h`},
		"lb port no number":          {podWith(`sonde.dev/lb-health-port: http`, ""), `metadata.annotations["sonde.dev/lb-health-port"]: "http": must be a port`},
		"lb port 0":                  {podWith(`sonde.dev/lb-health-port: "0"`, ""), `"0": must be a port`},
		"lb port is declared":        {podWith(`sonde.dev/lb-health-port: "8080"`, "ports: [{containerPort: 8080}]"), `metadata.annotations["sonde.dev/lb-health-port"]: "8080": containers[app].ports uses it`},
		"lb port is declared, UDP":   {podWith(`sonde.dev/lb-health-port: "9902"`, "ports: [{containerPort: 9902, protocol: UDP}]"), `reserved for the metrics`},
		"lb port is redirection":     {podWith(`sonde.dev/lb-health-port: "15006"`, ""), `"15006": reserved for redirection`},
		"lb port is metrics":         {podWith(`sonde.dev/lb-health-port: "9902"`, ""), `reserved for the metrics`},
		"lb port is probe port":      {podWith(`sonde.dev/lb-health-port: "9100", kuma.io/virtual-probes-port: "9100"`, ""), `port 9100 cannot be the virtual probes' port: metadata.annotations["sonde.dev/lb-health-port"] uses it`},
		"lb drain time":              {podWith(`sonde.dev/lb-drain-time: "20"`, ""), `metadata.annotations["sonde.dev/lb-drain-time"]: "20": must be a duration from 0s to 1h`},
		"metrics port no number":     {podWith(`sonde.dev/metrics-port: x`, ""), `metadata.annotations["sonde.dev/metrics-port"]: "x": must be a port from 1 to 65535, or 0 for none`},
		"metrics port too high":      {podWith(`sonde.dev/metrics-port: "70000"`, ""), `metadata.annotations["sonde.dev/metrics-port"]: "70000": must be a port`},
		"metrics port empty":         {podWith(`sonde.dev/metrics-port: ""`, ""), `metadata.annotations["sonde.dev/metrics-port"]: must be a port`},
		"metrics port 00":            {podWith(`sonde.dev/metrics-port: "00"`, ""), `"00": must be a port`},
		"metrics port -1":            {podWith(`sonde.dev/metrics-port: "-1"`, ""), `"-1": must be a port`},
		"metrics port is inbound":    {podWith(`sonde.dev/metrics-port: "15006"`, ""), `metadata.annotations["sonde.dev/metrics-port"]: "15006": reserved for redirection`},
		"metrics port is outbound":   {podWith(`sonde.dev/metrics-port: "15001"`, ""), `"15001": reserved for redirection`},
		"metrics port is readiness":  {podWith(`sonde.dev/metrics-port: "15022"`, ""), `"15022": reserved for the readiness of the sidecar`},
		"metrics port is health":     {podWith(`sonde.dev/metrics-port: "9902"`, ""), `"9902": reserved for the metrics of the sidecar`},
		"metrics port is declared":   {podWith("", "ports: [{containerPort: 5670}]"), `containers[app].ports: port 5670 is reserved for the metrics of the pod: set metadata.annotations["sonde.dev/metrics-port"] to another port, or to "0" for none`},
		"metrics port is probed":     {podWith("", "livenessProbe: {httpGet: {port: 5670}}"), `containers[app].livenessProbe: port 5670 is reserved for the metrics of the pod`},
		"metrics port is hooked":     {podWith("", "lifecycle: {preStop: {httpGet: {port: 5670}}}"), `containers[app].lifecycle.preStop: port 5670 is reserved for the metrics of the pod`},
		"asked metrics port is used": {podWith(`sonde.dev/metrics-port: "8080"`, "ports: [{containerPort: 8080}]"), `containers[app].ports: port 8080 is reserved for the metrics of the pod: set metadata.annotations["sonde.dev/metrics-port"] to another port`},
		"metrics port is probes'":    {podWith(`sonde.dev/metrics-port: "9100", kuma.io/virtual-probes-port: "9100"`, ""), `metadata.annotations["kuma.io/virtual-probes-port"]: port 9100 cannot be the virtual probes' port: the metrics of the pod (metadata.annotations["sonde.dev/metrics-port"]) uses it`},
		"metrics port is Kuma's":     {podWith(`kuma.io/application-probe-proxy-port: "5670"`, ""), `metadata.annotations["kuma.io/application-probe-proxy-port"]: port 5670 cannot be the virtual probes' port: the metrics of the pod (metadata.annotations["sonde.dev/metrics-port"]) uses it`},
		"metrics port is lb's":       {podWith(`sonde.dev/lb-health-port: "5670"`, ""), `metadata.annotations["sonde.dev/lb-health-port"]: "5670": the metrics of the pod (metadata.annotations["sonde.dev/metrics-port"]) uses it`},
		"metrics port is the range":  {podWith(`kuma.io/virtual-probes-port-range: 5670-5670, sonde.dev/virtual-probes-mode: per-port`, "livenessProbe: {tcpSocket: {port: 80}}"), `metadata.annotations["kuma.io/virtual-probes-port-range"]: "5670-5670"`},
		"mesh":                       {podWith(`kuma.io/mesh: My_Mesh`, ""), `metadata.annotations["kuma.io/mesh"]: "My_Mesh": must be the name of a mesh`},
		"injection":                  {podWith(`kuma.io/sidecar-injection: "yes"`, ""), `metadata.annotations["kuma.io/sidecar-injection"]: "yes": must be enabled or disabled`},
		"injection as label":         {parse(`{metadata: {labels: {kuma.io/sidecar-injection: "no"}}}`), `metadata.labels["kuma.io/sidecar-injection"]: "no": must be enabled or disabled`},
		"own injection":              {podWith(`sonde.dev/sidecar-injection: "1"`, ""), `metadata.annotations["sonde.dev/sidecar-injection"]: "1": must be`},
		"label and annotation":       {parse(`{metadata: {labels: {kuma.io/mesh: a}, annotations: {kuma.io/mesh: b}}}`), `metadata.annotations["kuma.io/mesh"]: "b": the label with the same name is "a"`},
		"asked port is declared":     {podWith(`kuma.io/virtual-probes-port: "8080"`, "ports: [{containerPort: 8080}]"), `metadata.annotations["kuma.io/virtual-probes-port"]: port 8080 cannot be the virtual probes' port: containers[app].ports uses it`},
		"asked port is probed":       {podWith(`kuma.io/virtual-probes-port: "8080"`, "livenessProbe: {tcpSocket: {port: 8080}}"), `containers[app].livenessProbe uses it`},
		"asked port is hooked":       {podWith(`kuma.io/virtual-probes-port: "8080"`, "lifecycle: {preStop: {httpGet: {port: 8080}}}"), `containers[app].lifecycle.preStop uses it`},
		"asked port is redirection":  {podWith(`kuma.io/virtual-probes-port: "15006"`, ""), `port 15006 cannot be the virtual probes' port: reserved for redirection`},
		"asked port is outbound":     {podWith(`kuma.io/virtual-probes-port: "15001"`, ""), `reserved for redirection`},
		"asked port is readiness":    {podWith(`kuma.io/virtual-probes-port: "15022"`, ""), `reserved for the readiness`},
		"asked port is metrics":      {podWith(`kuma.io/virtual-probes-port: "9902"`, ""), `reserved for the metrics`},
		"no spare port":              {podWith("", full), dead},
		"reserved port declared":     {podWith("", "ports: [{containerPort: 15006}]"), `containers[app].ports: port 15006 is reserved for redirection`},
		"reserved port probed":       {podWith("", "ports: [{name: x, containerPort: 9902, protocol: UDP}], livenessProbe: {httpGet: {port: x}}"), `containers[app].livenessProbe: port 9902 is reserved for the metrics of the sidecar`},
		"reserved port hooked":       {podWith("kuma.io/virtual-probes: disabled", "lifecycle: {preStop: {httpGet: {port: 15022}}}"), `containers[app].lifecycle.preStop: port 15022 is reserved for the readiness of the sidecar`},
		"container kuma-sidecar":     {parse("spec: {containers: [{name: app}, {name: kuma-sidecar, image: theirs}]}"), `containers[kuma-sidecar]: name is reserved for Sonde, which has not added this container`},
		"init kuma-sidecar ends":     {parse("spec: {containers: [{name: app}], initContainers: [{name: kuma-sidecar}]}"), `containers[kuma-sidecar]: name is reserved`},
		"container kuma-init":        {parse("spec: {containers: [{name: app}], initContainers: [{name: kuma-init}]}"), `containers[kuma-init]: name is reserved`},
		"volume":                     {parse("spec: {containers: [{name: app}], volumes: [{name: sonde-work}]}"), `spec.volumes[sonde-work]: name is reserved`},
		"two of a name":              {parse("spec: {containers: [{name: app}], initContainers: [{name: app}]}"), `containers[app]: two containers have this name`},
		"no name":                    {parse("spec: {containers: [{image: x}]}"), `spec.containers: a container has no name`},
		"no container":               {parse("spec: {}"), `spec.containers: must not be empty`},
		"several mistakes, the last": {podWith(`kuma.io/virtual-probes: x, traffic.kuma.io/exclude-inbound-ports: z`, ""), `exclude-inbound-ports`},
		"table too large": {
			podWith("", "livenessProbe: {httpGet: {port: 80, path: /"+strings.Repeat("a", mesh.MaxProbeTable)+"}}"),
			fmt.Sprintf("take %d bytes of environment", len(mesh.EnvProbeTable)+1+mesh.MaxProbeTable+len(`[{"id":"app-liveness","container":"app","type":"liveness","timeoutSeconds":1,"httpGet":{"path":"/","port":80,"scheme":"HTTP"}}]`)),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			injected, _, err := webhook.Inject(tc.pod, webhook.Options{})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("Inject() = %v, want %q", err, tc.want)
			}
			if injected != nil {
				t.Error("Inject returns a pod beside an error")
			}
			if _, _, explained := webhook.Explain(tc.pod, webhook.Options{}); explained == nil || explained.Error() != err.Error() {
				t.Errorf("Explain() = %v, but Inject() = %v", explained, err)
			}
		})
	}
}

func TestBadOptions(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	private := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	tests := map[string]struct {
		options webhook.Options
		want    string
	}{
		"sidecar":         {webhook.Options{Sidecar: "pod"}, `Sidecar: "pod": must be native or container`},
		"image":           {webhook.Options{Image: "a b"}, `Image: "a b"`},
		"mesh":            {webhook.Options{Mesh: "a.b"}, `Mesh: "a.b"`},
		"port":            {webhook.Options{VirtualProbesPort: 65536}, `VirtualProbesPort: "65536": must be a port`},
		"negative port":   {webhook.Options{VirtualProbesPort: -1}, `VirtualProbesPort: "-1"`},
		"metrics port":    {webhook.Options{MetricsPort: new(int32(70000))}, `MetricsPort: "70000": must be a port from 1 to 65535, or 0 for none`},
		"metrics inbound": {webhook.Options{MetricsPort: new(int32(15006))}, `MetricsPort: "15006": must not be the port of redirection`},
		"metrics ready":   {webhook.Options{MetricsPort: new(int32(15022))}, `MetricsPort: "15022": must not be the port of the readiness`},
		"metrics health":  {webhook.Options{MetricsPort: new(int32(9902))}, `MetricsPort: "9902": must not be the port of the metrics of the sidecar`},
		"metrics probes":  {webhook.Options{MetricsPort: new(int32(9001)), VirtualProbesPort: 9001}, `MetricsPort: "9001": must not be the port for probes`},
		"metrics names":   {webhook.Options{MetricsInclude: []string{"envoy_a", "go_"}}, `MetricsInclude: "go_": must be prefixes of Envoy's metrics`},
		"odd address":     {webhook.Options{ControlPlane: "a b:1"}, `ControlPlane: "a b:1": must be host:port`},
		"address":         {webhook.Options{ControlPlane: "cp"}, `ControlPlane: "cp": must be host:port`},
		"no host":         {webhook.Options{ControlPlane: ":5678"}, `ControlPlane`},
		"no PEM":          {webhook.Options{ControlPlaneCA: "hello"}, `ControlPlaneCA: must contain only PEM certificates`},
		"key beside":      {webhook.Options{ControlPlaneCA: caText(t) + private}, `ControlPlaneCA: block 2 is "PRIVATE KEY"`},
		"no certificate":  {webhook.Options{ControlPlaneCA: strings.ReplaceAll(private, "PRIVATE KEY", "CERTIFICATE")}, `ControlPlaneCA: block 1`},
		"text behind":     {webhook.Options{ControlPlaneCA: caText(t) + "hello"}, `ControlPlaneCA: must contain`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, _, err := webhook.Inject(podWith("", ""), tc.options); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Inject() = %v, want %q", err, tc.want)
			}
		})
	}
}

// caText returns a CA certificate.
func caText(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
