package qos

import (
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/topology"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// TestExclusiveCPUs runs the static policy of the kubelet's CPU manager on a node that only assigns whole cores of
// two CPUs: the application gets its own CPUs, and the sidecar none. A sidecar with one whole CPU would make the
// kubelet reject the pod.
func TestExclusiveCPUs(t *testing.T) {
	tests := map[string]struct {
		annotations string
		cpus        int // of the sidecar
		refused     bool
	}{
		"by default":      {},
		"a part of a CPU": {annotations: "sonde.dev/sidecar-cpu: 1500m"},
		"a whole core":    {annotations: `sonde.dev/sidecar-cpu-limit: "2"`, cpus: 2},
		"half a core":     {annotations: `sonde.dev/sidecar-cpu-limit: "1"`, refused: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, form := range []webhook.Form{webhook.Native, webhook.Container} {
				document, err := yaml.YAMLToJSON([]byte("{metadata: {uid: u, annotations: {" + tc.annotations + "}}, spec: {containers: [{name: app, image: a, resources: {limits: {cpu: 2, memory: 1Gi}}}]}}"))
				if err != nil {
					t.Fatal(err)
				}
				given, err := allocate(t, inject(t, document, webhook.Options{Sidecar: form}))
				if (err != nil) != tc.refused {
					t.Fatalf("%s: the kubelet returns %v", form, err)
				}
				if !tc.refused && (given["app"] != 2 || given[mesh.ContainerSidecar] != tc.cpus) {
					t.Errorf("%s: containers have exclusive CPUs %v, want 2 for app, %d for the sidecar", form, given, tc.cpus)
				}
			}
		})
	}
}

// allocate returns how many exclusive CPUs each container has, on a node of four cores with two CPUs each. One core is
// reserved.
func allocate(t *testing.T, pod *corev1.Pod) (map[string]int, error) {
	t.Helper()
	node := &topology.CPUTopology{NumCPUs: 8, NumCores: 4, NumSockets: 1, NumNUMANodes: 1, NumUncoreCache: 1, CPUDetails: topology.CPUDetails{}}
	for cpu := range node.NumCPUs {
		node.CPUDetails[cpu] = topology.CPUInfo{CoreID: cpu % node.NumCores}
	}
	logger := logr.Discard()
	reserved := node.CPUDetails.CPUsInCores(0)
	policy, err := cpumanager.NewStaticPolicy(logger, node, reserved.Size(), reserved, topologymanager.NewFakeManager(logger), map[string]string{cpumanager.FullPCPUsOnlyOption: "true"})
	if err != nil {
		t.Fatal(err)
	}
	cpus := state.NewMemoryState(logger)
	if err := policy.Start(logger, cpus); err != nil {
		t.Fatal(err)
	}
	given := map[string]int{}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			if err := policy.Allocate(logger, cpus, pod, c, lifecycle.AddOperation); err != nil {
				return nil, err
			}
			if set, ok := cpus.GetCPUSet(string(pod.UID), c.Name); ok {
				given[c.Name] = set.Size()
			}
		}
	}
	return given, nil
}
