//go:build !before136

package kubelet

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	kubeletprober "k8s.io/kubernetes/pkg/kubelet/prober"
	"k8s.io/kubernetes/pkg/kubelet/prober/results"
	"k8s.io/kubernetes/pkg/kubelet/status"
)

// Change is a verdict of the kubelet that has reached its threshold.
type Change struct {
	Container string
	// Kind is liveness, readiness or startup.
	Kind string
	// Passed is false if the container is restarted or becomes NotReady.
	Passed bool
}

// Watch probes a pod whose containers all run, periodically and with thresholds, until ctx ends, as
// pkg/kubelet/prober's manager does. It returns when everything has ended.
func Watch(ctx context.Context, pod *corev1.Pod, changed func(Change)) {
	setUp()
	liveness, readiness, startup := results.NewManager(), results.NewManager(), results.NewManager()
	recorder := record.NewFakeRecorder(1)
	recorder.Events = nil // discards events
	manager := kubeletprober.NewManager(running{pod: withStatus(pod)}, liveness, readiness, startup, nil, recorder)
	manager.AddPod(ctx, pod)
	var owned sync.WaitGroup
	for kind, updates := range map[string]<-chan results.Update{
		"liveness": liveness.Updates(), "readiness": readiness.Updates(), "startup": startup.Updates(),
	} {
		owned.Go(func() {
			for {
				select {
				case u := <-updates:
					changed(Change{Container: u.ContainerID.ID, Kind: kind, Passed: u.Result == results.Success})
				case <-ctx.Done():
					return
				}
			}
		})
	}
	<-ctx.Done()
	manager.RemovePod(pod)
	owned.Wait()
}

// withStatus gives each container an id and a state.
func withStatus(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	started := true
	state := func(list []corev1.Container) (all []corev1.ContainerStatus) {
		for _, c := range list {
			all = append(all, corev1.ContainerStatus{
				Name: c.Name, ContainerID: "test://" + c.Name, Started: &started,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
			})
		}
		return all
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = state(pod.Spec.Containers)
	pod.Status.InitContainerStatuses = state(pod.Spec.InitContainers)
	return pod
}

// running answers what the prober asks the kubelet's status manager.
type running struct {
	status.Manager
	pod *corev1.Pod
}

// GetPodStatus knows only this pod.
func (r running) GetPodStatus(types.UID) (corev1.PodStatus, bool) { return r.pod.Status, true }
