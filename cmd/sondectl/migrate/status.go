package migrate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/webhook"
)

// Status is the progress of workloads towards their requested mode.
type Status struct {
	Workloads []WorkloadStatus `json:"workloads"`
	Total     Count            `json:"total"`
}

// Count counts pods that have not ended.
type Count struct {
	Pods  int          `json:"pods"`
	Ready int          `json:"ready"`
	Modes map[Mode]int `json:"modes"`
	// Restarts of the application's containers. All are since the injection, since pods are injected when they are
	// created.
	Restarts int `json:"restarts"`
	// ToRoll counts the pods that are not in the requested mode.
	ToRoll int `json:"toRoll"`
	// Refused counts the workloads with a Problem.
	Refused int `json:"refused"`
}

// WorkloadStatus is the status of one workload.
type WorkloadStatus struct {
	Namespace string `json:"namespace"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	// To is the mode of new pods, and ToBy the object that requests it, "" for the default.
	To   mesh.ProbesMode `json:"to"`
	ToBy string          `json:"toBy,omitempty"`
	// Problem is why the webhook rejects new pods, "" if it does not.
	Problem string `json:"problem,omitempty"`
	Count
	// Roll names the pods that are still to roll.
	Roll []string `json:"roll"`
}

// Status returns the status of all workloads that have pods. o.ProbesMode is the mode of workloads that request none. A
// pod is to roll if Sonde injected it in a mode other than the requested one, or selects it but did not inject it.
func (c *Cluster) Status(o webhook.Options) *Status {
	s := &Status{Workloads: []WorkloadStatus{}, Total: Count{Modes: map[Mode]int{}}}
	for _, w := range c.workloads() {
		if len(w.pods) == 0 {
			continue
		}
		one := c.statusOf(w, o)
		s.Workloads = append(s.Workloads, one)
		s.Total.Pods += one.Pods
		s.Total.Ready += one.Ready
		s.Total.Restarts += one.Restarts
		s.Total.ToRoll += one.ToRoll
		s.Total.Refused += one.Refused
		for mode, n := range one.Modes {
			s.Total.Modes[mode] += n
		}
	}
	return s
}

func (c *Cluster) statusOf(w *workload, o webhook.Options) WorkloadStatus {
	s := WorkloadStatus{
		Namespace: w.namespace, Kind: w.kind, Name: w.name, Count: Count{Modes: map[Mode]int{}}, Roll: []string{},
	}
	a := c.admit(w, o)
	s.To, s.ToBy = a.to, a.toBy
	s.Problem = a.problem(slices.ContainsFunc(w.pods, func(pod *corev1.Pod) bool { return sidecarOf(pod).mode.ofSonde() }))
	if s.Problem != "" {
		s.Refused = 1
	}
	for _, pod := range w.pods {
		mode := sidecarOf(pod).mode
		s.Modes[mode]++
		s.Pods++
		s.Restarts += restarts(pod)
		if podspec.Has(pod, corev1.PodReady, corev1.ConditionTrue) {
			s.Ready++
		}
		wanted := mode.ofSonde() || a.known && a.selection.Injected
		if s.To != "" && wanted && mode != modeOf(w.template, s.To) {
			s.ToRoll++
			s.Roll = append(s.Roll, pod.Name)
		}
	}
	return s
}

// modeOf returns the mode of a new pod. Sonde's own annotation takes precedence over Kuma's port, as in the webhook.
func modeOf(template *corev1.Pod, m mesh.ProbesMode) Mode {
	value, ok := template.Annotations[mesh.AnnotationVirtualProbes]
	if ok && !enabled(value) || !ok && template.Annotations[mesh.AnnotationProbeProxyPort] == "0" {
		return Unrewritten
	}
	if m == mesh.ProbesPerPort {
		return PerPort
	}
	return Unified
}

// restarts returns the number of restarts of the application's containers.
func restarts(pod *corev1.Pod) (n int) {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, s := range statuses {
			if !isMeshContainer(s.Name) {
				n += int(s.RestartCount)
			}
		}
	}
	return n
}
