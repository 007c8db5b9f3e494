package fidelity_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	apiserver "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/test/fidelity/cases"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/webhook"
)

// refusal returns why the API server refuses a pod, or "" if it accepts the pod.
func refusal(pod *corev1.Pod) string {
	pod = pod.DeepCopy()
	pod.Namespace, pod.Spec.ServiceAccountName = "default", "default" // as the API server sets them
	if pod.Name == "" {
		pod.Name = "app"
	}
	apiserver.SetObjectDefaults_Pod(pod)
	internal := &core.Pod{}
	if err := apiserver.Convert_v1_Pod_To_core_Pod(pod, internal, nil); err != nil {
		return err.Error()
	}
	options := podutil.GetValidationOptionsFromPodSpecAndMeta(&internal.Spec, nil, &internal.ObjectMeta, nil)
	options.ResourceIsPod = true
	if errs := validation.ValidatePodCreate(internal, options); len(errs) > 0 {
		return errs.ToAggregate().Error()
	}
	return ""
}

// probesToJudge are probes and hooks. The API server refuses most of them.
var probesToJudge = []string{
	`httpGet: {port: 80}`, `httpGet: {port: 0}`, `httpGet: {port: -1}`, `httpGet: {port: 65536}`, `httpGet: {port: "80"}`, `httpGet: {port: ""}`,
	`httpGet: {port: web}`, `httpGet: {port: nosuch}`, `httpGet: {port: Web}`, `httpGet: {port: of-sixteen-chars}`, `httpGet: {port: 80, scheme: https}`,
	`httpGet: {port: 80, scheme: HTTPS}`, `httpGet: {port: 80, host: "a b"}`, `httpGet: {port: 80, path: "\x01 \x7f"}`,
	`httpGet: {port: 80, httpHeaders: [{name: X_A, value: ""}]}`, `httpGet: {port: 80, httpHeaders: [{name: "", value: ""}]}`,
	`httpGet: {port: 80, httpHeaders: [{name: "a b", value: ""}]}`, `httpGet: {port: 80, httpHeaders: [{name: "a:", value: ""}]}`,
	`httpGet: {port: 80, httpHeaders: [{name: ä, value: ""}]}`, `httpGet: {port: 80, httpHeaders: [{name: a.b, value: ""}]}`,
	`httpGet: {port: 80, httpHeaders: [{name: Host, value: "a\nb"}]}`, `httpGet: {port: 80}, tcpSocket: {port: 80}`,
	`tcpSocket: {port: 0}`, `tcpSocket: {port: 1, host: "///"}`, `tcpSocket: {port: 1}`, `exec: {command: []}`, `exec: {command: [x]}`, ``,
}

var grpcsToJudge = []string{
	`grpc: {port: 1}`, `grpc: {port: 0}`, `grpc: {port: 65536}`, `grpc: {port: -5}`, `grpc: {port: 80, service: "a\x01"}`,
	`grpc: {port: 1}, timeoutSeconds: -1`, `grpc: {port: 1}, timeoutSeconds: 2147483647`, `grpc: {port: 1}, successThreshold: 3`, `grpc: {port: 1}, periodSeconds: -1`,
	`grpc: {port: 1}, terminationGracePeriodSeconds: 0`, `grpc: {port: 1}, terminationGracePeriodSeconds: 1`,
}

// specsToJudge are pod specs that differ in more than probes.
var specsToJudge = []string{
	`resources: {limits: {cpu: 500m, memory: 256Mi}}, containers: [{name: a, image: a}]`,
	`resources: {requests: {cpu: 10m, memory: 16Mi}}, containers: [{name: a, image: a, resources: {requests: {cpu: 10m}}}]`,
	`resources: {limits: {cpu: 10m}, requests: {cpu: 10m}}, containers: [{name: a, image: a}]`,
	`hostUsers: false, os: {name: linux}, containers: [{name: a, image: a}]`,
	`securityContext: {runAsNonRoot: true, runAsUser: 1, fsGroup: 3, seccompProfile: {type: Unconfined}}, containers: [{name: a, image: a}]`,
	`terminationGracePeriodSeconds: 0, containers: [{name: a, image: a}]`,
	`terminationGracePeriodSeconds: 3, containers: [{name: a, image: a, lifecycle: {preStop: {sleep: {seconds: 4}}}}]`,
	`os: {name: linux}, containers: [{name: a, image: a, lifecycle: {stopSignal: SIGUSR1, preStop: {httpGet: {port: 1}}}}]`,
	`restartPolicy: Never, containers: [{name: a, image: a, restartPolicy: Never, restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]}]`,
	`containers: [{name: a, image: a, volumeMounts: [{name: v, mountPath: /var/run/sonde}]}], volumes: [{name: v, emptyDir: {}}]`,
	`containers: [{name: a, image: a, ports: [{containerPort: 9000, hostPort: 9000}]}]`,
	`shareProcessNamespace: true, hostIPC: true, containers: [{name: a, image: a, ports: [{containerPort: 9000, protocol: SCTP}, {containerPort: 53, protocol: UDP, hostPort: 53}]}]`,
	`resources: {limits: {memory: 40Mi, hugepages-2Mi: 4Mi}}, containers: [{name: a, image: a, livenessProbe: {grpc: {port: 1, service: ""}}}]`,
	`resourceClaims: [{name: gpu, resourceClaimTemplateName: gpu}], runtimeClassName: nvidia, containers: [{name: a, image: a, resources: {limits: {nvidia.com/gpu: 1}, claims: [{name: gpu}]}}]`,
	`restartPolicy: Never, containers: [{name: a, image: a}], initContainers: [{name: b, image: a, restartPolicy: OnFailure, restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [1]}}]}]`,
	`securityContext: {windowsOptions: {runAsUserName: ContainerUser}}, containers: [{name: a, image: a, livenessProbe: {httpGet: {port: 80}}}]`,
	`containers: [{name: a, image: a, env: [{name: A, value: "1"}, {name: A, value: "2"}], livenessProbe: {httpGet: {port: 80, httpHeaders: [{name: Sonde-Probe, value: mine}]}}}]`,
	`topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}], readinessGates: [{conditionType: a.b/c}], schedulingGates: [{name: a.b/c}], containers: [{name: a, image: a}]`,
	`volumes: [{name: v, image: {reference: a}}, {name: w, emptyDir: {}}, {name: w, emptyDir: {}}], containers: [{name: a, image: a, resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}]}]`,
	`automountServiceAccountToken: false, setHostnameAsFQDN: true, dnsPolicy: None, dnsConfig: {nameservers: [1.1.1.1]}, containers: [{name: a, image: a}]`,
}

func podsToJudge(t *testing.T) map[string]string {
	pods := map[string]string{}
	add := func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		pods[text] = text
	}
	container := func(field string) {
		add("spec: {containers: [{name: a, image: a, ports: [{name: web, containerPort: 80}], %s}]}", field)
		add("spec: {containers: [{name: b, image: a}], initContainers: [{name: a, image: a, restartPolicy: Always, %s}]}", field)
		add("spec: {containers: [{name: b, image: a}], initContainers: [{name: a, image: a, %s}]}", field)
	}
	for _, spec := range specsToJudge {
		add("spec: {%s}", spec)
	}
	for _, probe := range append(grpcsToJudge, probesToJudge...) {
		for _, kind := range cases.Kinds[:3] {
			container(kind + "Probe: {" + probe + "}")
		}
	}
	for _, hook := range append([]string{"sleep: {seconds: 1}", "sleep: {seconds: 31}", "sleep: {seconds: -1}"}, probesToJudge...) {
		for _, kind := range cases.Kinds[3:] {
			container("lifecycle: {" + kind + ": {" + hook + "}}")
		}
	}
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "testdata", "inject", "*", "pod.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("found no pods in testdata: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pods[filepath.Base(filepath.Dir(file))] = string(text)
	}
	return pods
}

// TestTheAPIServerJudges runs the API server's own validation: it must accept a pod with a sidecar if and only if it
// accepts the pod without one.
func TestTheAPIServerJudges(t *testing.T) {
	t.Parallel()
	judged := map[bool]int{}
	pods := podsToJudge(t)
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		text := pods[name]
		document, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		pod := &corev1.Pod{}
		if err := json.Unmarshal(document, pod); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		before := refusal(pod)
		judged[before == ""]++
		for _, form := range []webhook.Form{webhook.Native, webhook.Container} {
			document, _, err := webhook.InjectJSON(document, webhook.Options{Sidecar: form})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			injected := &corev1.Pod{}
			if err := json.Unmarshal(document, injected); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if after := refusal(injected); (before == "") != (after == "") {
				t.Errorf("%s, %s: with a sidecar the API server answers %q, without one %q", name, form, after, before)
			}
		}
	}
	t.Logf("%d pods accepted, %d refused", judged[true], judged[false])
	if judged[true] < 50 || judged[false] < 50 {
		t.Error("want at least 50 of each")
	}
}
