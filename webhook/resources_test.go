package webhook_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

const (
	burstable  = ""
	guaranteed = "resources: {limits: {cpu: 2, memory: 1Gi}}"
)

// ofSidecar returns the resources of kuma-sidecar, "cpu 50m to 1, memory 64Mi to 512Mi", and checks that kuma-init has
// the same.
func ofSidecar(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	text := func(c corev1.Container) string {
		value := func(list corev1.ResourceList, name corev1.ResourceName) string {
			q, ok := list[name]
			if !ok {
				return "none"
			}
			return q.String()
		}
		var parts []string
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			parts = append(parts, fmt.Sprintf("%s %s to %s", name, value(c.Resources.Requests, name), value(c.Resources.Limits, name)))
		}
		return strings.Join(parts, ", ")
	}
	sidecar := text(sidecarOf(t, pod))
	if first := text(initOf(t, pod)); first != sidecar {
		t.Errorf("kuma-init has %s, kuma-sidecar %s", first, sidecar)
	}
	return sidecar
}

// The pod takes precedence over its namespace, and the namespace over the control plane. In a pod of QoS class
// Guaranteed, request and limit are the same.
func TestResourcesOfTheSidecar(t *testing.T) {
	tests := map[string]struct {
		pod, namespace string // annotations, without their prefix
		options        webhook.Resources
		burstable      string
		guaranteed     string
	}{
		"no annotations": {
			burstable:  "cpu 50m to 1, memory 64Mi to 512Mi",
			guaranteed: "cpu 250m to 250m, memory 512Mi to 512Mi",
		},
		"the pod requests": {
			pod:        "cpu: 300m, memory: 200Mi",
			burstable:  "cpu 300m to 1, memory 200Mi to 512Mi",
			guaranteed: "cpu 300m to 300m, memory 200Mi to 200Mi",
		},
		"the pod limits": {
			pod:        "cpu-limit: 2, memory-limit: 1Gi",
			burstable:  "cpu 50m to 2, memory 64Mi to 1Gi",
			guaranteed: "cpu 2 to 2, memory 1Gi to 1Gi",
		},
		"the pod says both alike": {
			pod:        "cpu: 0.5, cpu-limit: 500m, memory: 1Gi, memory-limit: 1024Mi",
			burstable:  "cpu 500m to 500m, memory 1Gi to 1Gi",
			guaranteed: "cpu 500m to 500m, memory 1Gi to 1Gi",
		},
		"the pod does not want to be Guaranteed": {
			pod:        "cpu: 100m, cpu-limit: 2",
			burstable:  "cpu 100m to 2, memory 64Mi to 512Mi",
			guaranteed: "cpu 100m to 2, memory 64Mi to 512Mi",
		},
		"a request above the limit of others": {
			pod: "cpu: 1500m, memory: 600Mi", namespace: "cpu-limit: 200m, memory-limit: 100Mi",
			burstable:  "cpu 1500m to 1500m, memory 600Mi to 600Mi",
			guaranteed: "cpu 1500m to 1500m, memory 600Mi to 600Mi",
		},
		"a limit below the request of others": {
			pod: "cpu-limit: 100m, memory-limit: 96Mi", options: webhook.Resources{CPU: "400m", Memory: "300Mi"},
			burstable:  "cpu 100m to 100m, memory 96Mi to 96Mi",
			guaranteed: "cpu 100m to 100m, memory 96Mi to 96Mi",
		},
		"by the namespace, against it all": {
			namespace: "cpu: 100m, cpu-limit: 400m", options: webhook.Resources{CPU: "1", CPULimit: "3", Memory: "1Gi", MemoryLimit: "2Gi"},
			burstable:  "cpu 100m to 400m, memory 1Gi to 2Gi",
			guaranteed: "cpu 400m to 400m, memory 2Gi to 2Gi",
		},
		"by the pod, against both": {
			pod: "cpu: 200m, memory-limit: 150Mi", namespace: "cpu: 1, memory: 140Mi", options: webhook.Resources{CPULimit: "3", MemoryLimit: "2Gi"},
			burstable:  "cpu 200m to 3, memory 140Mi to 150Mi",
			guaranteed: "cpu 200m to 200m, memory 150Mi to 150Mi",
		},
		"a request that is too little for a limit": {
			options:    webhook.Resources{CPU: "10m", Memory: "40Mi"},
			burstable:  "cpu 10m to 1, memory 40Mi to 512Mi",
			guaranteed: "cpu 50m to 50m, memory 96Mi to 96Mi",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for of, want := range map[string]string{burstable: tc.burstable, guaranteed: tc.guaranteed} {
				for _, form := range forms() {
					o := webhook.Options{Sidecar: form, Resources: tc.options}
					ns := &webhook.Namespace{Name: "shop", Annotations: podWith(prefixed(tc.namespace), "").Annotations}
					injected, err := webhook.InjectIn(podWith("kuma.io/sidecar-injection: enabled, "+prefixed(tc.pod), of), ns, o)
					if err != nil {
						t.Fatal(err)
					}
					if got := ofSidecar(t, injected); got != want {
						t.Errorf("%s, %q: %s, want %s", form, of, got, want)
					}
					warned := injected.Annotations[mesh.AnnotationInjectionWarnings]
					if leaves := of == guaranteed && name == "the pod does not want to be Guaranteed"; leaves != strings.Contains(warned, "loses its QoS class Guaranteed") {
						t.Errorf("%s, %q: warnings %q", form, of, warned)
					}
				}
			}
		})
	}
}

// prefixed adds "sonde.dev/sidecar-" to each key, and quotes each value, since annotations are strings.
func prefixed(annotations string) string {
	var all []string
	for pair := range strings.SplitSeq(annotations, ", ") {
		if key, value, ok := strings.Cut(pair, ": "); ok {
			all = append(all, fmt.Sprintf("sonde.dev/sidecar-%s: %q", key, value))
		}
	}
	return strings.Join(all, ", ")
}

func TestPodsThatAreGuaranteed(t *testing.T) {
	const full = "resources: {limits: {cpu: 1, memory: 1Gi}}"
	containers := func(first string, others ...string) string {
		return "spec: {containers: [{name: app, " + first + "}], initContainers: [" + strings.Join(others, ", ") + "]}"
	}
	tests := map[string]struct {
		pod  string
		want bool
	}{
		"limits alone":                         {containers(full), true},
		"requests alone":                       {containers("resources: {requests: {cpu: 1, memory: 1Gi}}"), false},
		"both alike, written another way":      {containers("resources: {requests: {cpu: 1000m, memory: 1024Mi}, limits: {cpu: 1.0, memory: 1073741824}}"), true},
		"only one requested":                   {containers("resources: {requests: {cpu: 1}, limits: {cpu: 1, memory: 1Gi}}"), true},
		"a lower request":                      {containers("resources: {requests: {cpu: 999m}, limits: {cpu: 1, memory: 1Gi}}"), false},
		"no limit of memory":                   {containers("resources: {requests: {cpu: 1, memory: 1Gi}, limits: {cpu: 1}}"), false},
		"limits of zero":                       {containers("resources: {limits: {cpu: 0, memory: 0}}"), false},
		"a request of zero":                    {containers("resources: {requests: {cpu: 0}, limits: {cpu: 1, memory: 1Gi}}"), false},
		"none":                                 {containers(""), false},
		"other resources":                      {containers("resources: {requests: {example.com/gpu: 1, ephemeral-storage: 1Gi}, limits: {cpu: 1, memory: 1Gi, example.com/gpu: 1}}"), true},
		"an init container":                    {containers(full, "{name: a, "+full+"}"), true},
		"an init container without resources":  {containers(full, "{name: a}"), false},
		"a native sidecar":                     {containers(full, "{name: a, restartPolicy: Always, "+full+"}"), true},
		"a native sidecar with a part of them": {containers(full, "{name: a, restartPolicy: Always, resources: {limits: {cpu: 1}}}"), false},
		"an invalid quantity":                  {containers(`resources: {limits: {cpu: "1e100000000", memory: 1Gi}}`), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, form := range forms() {
				// As sent by the API server, since injection reads documents.
				document, _, err := webhook.InjectJSON(toJSON(t, tc.pod), webhook.Options{Sidecar: form})
				if err != nil {
					t.Fatal(err)
				}
				want := "cpu 50m to 1, memory 64Mi to 512Mi"
				if tc.want {
					want = "cpu 250m to 250m, memory 512Mi to 512Mi"
				}
				if got := ofSidecar(t, decode(t, document)); got != want {
					t.Errorf("%s: %s, want %s", form, got, want)
				}
			}
		})
	}
}

func TestBadQuantities(t *testing.T) {
	const (
		cpu         = "must be a quantity of at least 1m, such as 100m or 1.5"
		cpuLimit    = "must be a quantity of at least 50m, such as 500m or 1.5"
		memory      = "must be a quantity of at least 32Mi, such as 128Mi"
		memoryLimit = "must be a quantity of at least 96Mi, such as 256Mi"
	)
	tests := map[string]struct{ key, value, want string }{
		"no quantity":           {"cpu", "much", cpu},
		"empty":                 {"cpu", "", cpu},
		"blank":                 {"cpu", " 1", cpu},
		"zero":                  {"cpu", "0", cpu},
		"negative":              {"cpu", "-1", cpu},
		"less than Kubernetes'": {"cpu", "0.0001", cpu},
		"a limit of zero":       {"cpu-limit", "0", cpuLimit},
		"too little CPU":        {"cpu-limit", "49m", cpuLimit},
		"no unit":               {"memory", "128", memory},
		"a unit of CPU":         {"memory", "128m", memory},
		"an unknown unit":       {"memory", "128MB", memory},
		"two quantities":        {"memory", "64Mi 128Mi", memory},
		"too little memory":     {"memory-limit", "95Mi", memoryLimit},
		"a negative limit":      {"memory-limit", "-512Mi", memoryLimit},
		"a long number":         {"memory-limit", "1e1000000000", memoryLimit},
		"a short number":        {"cpu-limit", "1e-1000000000", cpuLimit},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			value := ""
			if tc.value != "" {
				value = fmt.Sprintf("%q: ", tc.value)
			}
			annotation := fmt.Sprintf("sonde.dev/sidecar-%s: %q", tc.key, tc.value)
			field := fmt.Sprintf(`metadata.annotations["sonde.dev/sidecar-%s"]: `, tc.key)
			_, _, err := webhook.Inject(podWith(annotation, ""), webhook.Options{})
			hasError(t, err, field+value+tc.want)
			ns := &webhook.Namespace{Name: "shop", Annotations: podWith(annotation, "").Annotations}
			_, err = webhook.InjectIn(podWith("kuma.io/sidecar-injection: enabled", ""), ns, webhook.Options{})
			hasError(t, err, "namespace shop: "+field+value+tc.want)
			if tc.value != "" { // the default
				o := map[string]webhook.Resources{
					"cpu": {CPU: tc.value}, "cpu-limit": {CPULimit: tc.value}, "memory": {Memory: tc.value}, "memory-limit": {MemoryLimit: tc.value},
				}[tc.key]
				option := map[string]string{"cpu": "CPU", "cpu-limit": "CPULimit", "memory": "Memory", "memory-limit": "MemoryLimit"}[tc.key]
				hasError(t, webhook.Options{Resources: o}.Validate(), "Resources."+option+": "+value+tc.want)
			}
		})
	}
}

func hasError(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q in it", err, want)
	}
}

// The error contains all problems.
func TestQuantitiesThatContradict(t *testing.T) {
	pod := podWith(prefixed("cpu: 2, cpu-limit: 1, memory: 1Gi, memory-limit: 512Mi"), "")
	_, _, err := webhook.Inject(pod, webhook.Options{Resources: webhook.Resources{}})
	hasError(t, err, `metadata.annotations["sonde.dev/sidecar-cpu"]: "2": must be at most the sidecar's limit, 1`)
	hasError(t, err, `metadata.annotations["sonde.dev/sidecar-memory"]: "1Gi": must be at most the sidecar's limit, 512Mi`)
	hasError(t, webhook.Options{Resources: webhook.Resources{CPU: "2", CPULimit: "1"}}.Validate(), `Resources.CPU: "2": must be at most the sidecar's limit, 1`)

	pod = podWith(prefixed("cpu: 700m, memory-limit: 1Gi"), "")
	pod.Spec.Resources = &parse("spec: {containers: [{name: a, resources: {limits: {cpu: 500m, memory: 512Mi}}}]}").Spec.Containers[0].Resources
	_, _, err = webhook.Inject(pod, webhook.Options{})
	hasError(t, err, `metadata.annotations["sonde.dev/sidecar-cpu"]: "700m": must be at most the limit in spec.resources, 500m`)
	hasError(t, err, `metadata.annotations["sonde.dev/sidecar-memory-limit"]: "1Gi": must be at most the limit in spec.resources, 512Mi`)
}

// TestAPartOfThePods injects pods with their own resources, whose annotations give a part to the sidecar. The pod's
// default requests do not change.
func TestAPartOfThePods(t *testing.T) {
	tests := map[string]struct {
		resources, annotations string
		want, requests         string
	}{
		"a limit":              {"limits: {cpu: 1, memory: 1Gi}", "cpu-limit: 200m", "cpu 50m to 200m, memory none to none", "1"},
		"a low limit":          {"requests: {cpu: 1}, limits: {cpu: 1}", "cpu-limit: 50m", "cpu 50m to 50m, memory 64Mi to 512Mi", "1"},
		"a request":            {"limits: {cpu: 1, hugepages-2Mi: 2Mi}, requests: {hugepages-2Mi: 2Mi}", "cpu: 100m", "cpu 100m to none, memory 64Mi to 512Mi", "1"},
		"a lower request":      {"requests: {cpu: 500m}, limits: {cpu: 1}", "cpu: 100m, cpu-limit: 200m", "cpu 100m to 200m, memory 64Mi to 512Mi", "500m"},
		"no limit of the pod":  {"requests: {cpu: 500m}", "cpu: 100m", "cpu 100m to none, memory 64Mi to 512Mi", "500m"},
		"of another namespace": {"limits: {cpu: 1, memory: 1Gi}", "", "cpu none to none, memory none to none", "0"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			document := toJSON(t, "metadata: {annotations: {"+prefixed(tc.annotations)+"}}\nspec: {resources: {"+tc.resources+"}, containers: [{name: app}]}")
			document, _, err := webhook.InjectJSON(document, webhook.Options{Resources: webhook.Resources{CPU: "2", CPULimit: "3"}})
			if err != nil {
				t.Fatal(err)
			}
			pod := decode(t, document)
			if got := ofSidecar(t, pod); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
			if got := pod.Spec.Resources.Requests.Cpu().String(); got != tc.requests {
				t.Errorf("the pod requests %s, want %s", got, tc.requests)
			}
			if _, huge := pod.Spec.Resources.Requests["hugepages-2Mi"]; huge != strings.Contains(tc.resources, "requests: {hugepages-2Mi") {
				t.Errorf("the pod requests %v", pod.Spec.Resources.Requests)
			}
		})
	}
	app := "containers: [{name: app, resources: {requests: {cpu: 300m}}}]"
	pod, _ := inject(t, parse("metadata: {annotations: {"+prefixed("cpu: 100m")+"}}\nspec: {resources: {limits: {cpu: 1}}, "+app+"}"), webhook.Options{})
	if got := pod.Spec.Resources.Requests; len(got) > 0 {
		t.Errorf("a pod whose container requests CPU requests %v, want what the API server makes of it", got)
	}
}

// Untrusted clients may send quantities whose rounding or comparison would take hours.
func TestQuantitiesOfStrangers(t *testing.T) {
	s := newServer(t, enabled().options())
	for _, text := range []string{`"1e-1000000000"`, `1e-1000000000`, `"1e1000000000"`, `"1e-999999"`, `{"a":1}`, `null`, `"` + strings.Repeat("1", 64<<10) + `"`} {
		lists := `{"limits":{"cpu":` + text + `,"memory":` + text + `},"requests":{"cpu":` + text + `,"memory":` + text + `}}`
		pod := `{"spec":{"resources":` + lists + `,"containers":[{"name":"app","resources":` + lists + `}]}}`
		if code := post(t, s, webhook.PathInject, podReview("shop", []byte(pod))).Code; code != http.StatusOK {
			t.Errorf("%.30s is answered with %d", text, code)
		}
	}
}
