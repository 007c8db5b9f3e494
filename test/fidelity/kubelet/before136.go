//go:build before136

package kubelet

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
)

// proberRecorder is the prober's event recorder.
type proberRecorder = record.EventRecorder

// GetPodStatus returns the same address for every pod.
func (ip podIP) GetPodStatus(_ context.Context, uid types.UID, _, _ string) (*kubecontainer.PodStatus, error) {
	return ip.status(uid), nil
}
