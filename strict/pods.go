package strict

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
)

const (
	// maxPodsAt addresses are looked up for one answer, those that were seen last, podsAtOnce at a time, within podsAtTimeout: the rest stay
	// addresses.
	maxPodsAt     = 100
	podsAtOnce    = 8
	podsAtTimeout = 5 * time.Second
)

// Pod is the pod that has an address: its name, NAMESPACE/NAME, and its node. Pods with hostNetwork share the address of their node: then it has no name.
type Pod struct{ Name, Node string }

// Pods asks the API server for pods, since the control plane keeps none without a sidecar. All fields are required.
type Pods struct {
	Client kubernetes.Interface
	Logger *slog.Logger
}

// At returns the pods with these addresses. last is when each address was seen last: a pod that has started since is another one than was seen.
func (p Pods) At(ctx context.Context, last map[netip.Addr]time.Time) map[netip.Addr]Pod {
	ctx, cancel := context.WithTimeout(ctx, podsAtTimeout)
	defer cancel()
	var mu sync.Mutex
	found := map[netip.Addr]Pod{}
	var asking errgroup.Group
	asking.SetLimit(podsAtOnce)
	newest := slices.SortedFunc(maps.Keys(last), func(a, b netip.Addr) int { return last[b].Compare(last[a]) })
	for _, address := range newest[:min(len(newest), maxPodsAt)] {
		asking.Go(func() error {
			// From the API server's cache: it looks through all pods.
			pods, err := p.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{
				FieldSelector: fields.OneTermEqualSelector("status.podIP", address.String()).String(), ResourceVersion: "0",
			})
			if err != nil {
				return fmt.Errorf("list pods with address %s: %w", address, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if pod, ok := senderOf(pods.Items, last[address]); ok {
				found[address] = pod
			}
			return nil
		})
	}
	if err := asking.Wait(); err != nil {
		p.Logger.WarnContext(ctx, "pods that send plain text not all found", "err", err)
	}
	return found
}

// clockSkew is how much later the clock of a node may be than that of the control plane.
const clockSkew = 5 * time.Second

// senderOf returns whose an address was then, among the pods that have it, or have had it last: the youngest that was there.
func senderOf(pods []corev1.Pod, seen time.Time) (Pod, bool) {
	var youngest *corev1.Pod
	for i := range pods {
		p := &pods[i]
		if started := p.Status.StartTime; started == nil || started.After(seen.Add(clockSkew)) || youngest != nil && started.Before(youngest.Status.StartTime) {
			continue
		}
		youngest = p
	}
	switch {
	case youngest == nil:
		return Pod{}, false
	case youngest.Spec.HostNetwork:
		return Pod{Node: youngest.Spec.NodeName}, true
	}
	return Pod{Name: youngest.Namespace + "/" + youngest.Name, Node: youngest.Spec.NodeName}, true
}
