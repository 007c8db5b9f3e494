package qos

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiserver "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/webhook"
)

// pods is the number of injected random pods.
const pods = 1000

// decode decodes a pod, and sets the API server's defaults.
func decode(t *testing.T, document []byte) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := json.Unmarshal(document, pod); err != nil {
		t.Fatal(err)
	}
	apiserver.SetObjectDefaults_Pod(pod)
	return pod
}

func inject(t *testing.T, document []byte, o webhook.Options) *corev1.Pod {
	t.Helper()
	document, _, err := webhook.InjectJSON(document, o)
	if err != nil {
		t.Fatalf("%s: %v", document, err)
	}
	return decode(t, document)
}

// TestRandomPods injects random pods, as users write them and as the API server sends them: pods of class Guaranteed
// stay Guaranteed, and all others are Burstable.
func TestRandomPods(t *testing.T) {
	random := rand.New(rand.NewPCG(25, 41))
	classes := map[corev1.PodQOSClass]int{}
	for range pods {
		text := randomPod(random)
		written, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		before := decode(t, written)
		sent, err := json.Marshal(before)
		if err != nil {
			t.Fatal(err)
		}
		class := qos.ComputePodQOS(before)
		classes[class]++
		own := before.Spec.Resources
		if class == corev1.PodQOSBestEffort && (own == nil || len(own.Requests)+len(own.Limits) == 0) { // then only the containers decide, and the sidecar has resources
			class = corev1.PodQOSBurstable
		}
		o := webhook.Options{Resources: randomOptions(random)}
		for _, o.Sidecar = range []webhook.Form{webhook.Native, webhook.Container} {
			for who, document := range map[string][]byte{"its author": written, "the API server": sent} {
				if got := qos.ComputePodQOS(inject(t, document, o)); got != class {
					t.Errorf("%s, as %s writes it, with %+v: the class is %s, want %s", text, who, o.Resources, got, class)
				}
			}
		}
	}
	t.Logf("classes of pods: %v", classes)
	for _, class := range []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort} {
		if classes[class] < pods/20 {
			t.Errorf("%d pods are %s, want more", classes[class], class)
		}
	}
}

// one returns one of the texts.
func one(random *rand.Rand, texts ...string) string { return texts[random.IntN(len(texts))] }

// randomPod returns a pod as YAML. Most of its containers have the same resources, because otherwise
// few pods would be Guaranteed.
func randomPod(random *rand.Rand) string {
	usual := randomResources(random)
	container := func(name, fields string) string {
		resources := usual
		if random.IntN(8) == 0 {
			resources = randomResources(random)
		}
		return fmt.Sprintf("{name: %s, image: a%s, resources: {%s}}", name, fields, resources)
	}
	containers, first := []string{container("app", "")}, []string{}
	if random.IntN(3) == 0 {
		containers = append(containers, container("second", ""))
	}
	if random.IntN(3) == 0 {
		first = append(first, container("init", ""))
	}
	if random.IntN(3) == 0 {
		first = append(first, container("native", ", restartPolicy: Always"))
	}
	pod, annotations := "", []string{}
	switch random.IntN(4) {
	case 0:
		pod = "resources: {" + randomResources(random) + "}, "
	case 1: // only one of the two: setting both would decide about the class
		annotations = append(annotations, fmt.Sprintf("sonde.dev/sidecar-%s: %q", one(random, "cpu", "cpu-limit"), one(random, "50m", "0.1", "100m")))
	}
	return fmt.Sprintf("{metadata: {annotations: {%s}}, spec: {%scontainers: [%s], initContainers: [%s]}}",
		strings.Join(annotations, ", "), pod, strings.Join(containers, ", "), strings.Join(first, ", "))
}

// randomResources returns requests and limits, which are often equal in value, but not always in
// notation.
func randomResources(random *rand.Rand) string {
	list := func(cpu, memory []string) string {
		var all []string
		if q := one(random, cpu...); q != "" {
			all = append(all, "cpu: "+q)
		}
		if q := one(random, memory...); q != "" {
			all = append(all, "memory: "+q)
		}
		if random.IntN(2) == 0 {
			all = append(all, "hugepages-2Mi: 2Mi") // ignored for the class
		}
		return strings.Join(all, ", ")
	}
	limits := list([]string{"1", "1000m", "1.0", "1000m", "1", ""}, []string{"1Gi", "1024Mi", "1073741824", "1Gi", "1Gi", ""})
	switch random.IntN(6) {
	case 0:
		return ""
	case 1:
		return "requests: {" + list([]string{"1", "500m", "", "0"}, []string{"1Gi", "512Mi", "", "0"}) + "}"
	case 2:
		return fmt.Sprintf("requests: {%s}, limits: {%s}", list([]string{"1", "1000m", "500m", "", "0"}, []string{"1Gi", "1048576Ki", "512Mi", ""}), limits)
	default:
		return fmt.Sprintf("requests: {%s}, limits: {%s}", list([]string{"1", "", "1000m"}, []string{"1Gi", "", "1024Mi"}), limits)
	}
}

func randomOptions(random *rand.Rand) webhook.Resources {
	return webhook.Resources{
		CPU: one(random, "", "20m"), CPULimit: one(random, "", "2"), Memory: one(random, "", "40Mi"), MemoryLimit: one(random, "", "1Gi"),
	}
}
