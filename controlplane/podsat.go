package controlplane

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

const (
	// maxPodsAt addresses are looked up for one answer, those that were seen last, podsAtOnce at a time, within podsAtTimeout: the rest stay
	// addresses.
	maxPodsAt     = 100
	podsAtOnce    = 8
	podsAtTimeout = 5 * time.Second
)

// podAt is the pod that has an address, NAMESPACE/NAME, or the node, whose pods with hostNetwork share it.
type podAt struct{ pod, node string }

// podsAt asks the API server, since the control plane keeps no pods without a sidecar. last is when each address was seen last: a pod that has
// started since is another one than was seen.
func (c *cluster) podsAt(ctx context.Context, last map[netip.Addr]time.Time) map[netip.Addr]podAt {
	ctx, cancel := context.WithTimeout(ctx, podsAtTimeout)
	defer cancel()
	var mu sync.Mutex
	found := map[netip.Addr]podAt{}
	var asking errgroup.Group
	asking.SetLimit(podsAtOnce)
	newest := slices.SortedFunc(maps.Keys(last), func(a, b netip.Addr) int { return last[b].Compare(last[a]) })
	for _, address := range newest[:min(len(newest), maxPodsAt)] {
		asking.Go(func() error {
			// From the API server's cache: it looks through all pods.
			pods, err := c.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{
				FieldSelector: fields.OneTermEqualSelector("status.podIP", address.String()).String(), ResourceVersion: "0",
			})
			if err != nil {
				return fmt.Errorf("list pods with address %s: %w", address, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if p, ok := senderOf(pods.Items, last[address]); ok {
				found[address] = p
			}
			return nil
		})
	}
	if err := asking.Wait(); err != nil {
		c.cp.o.Logger.WarnContext(ctx, "pods that send plain text not all found", "err", err)
	}
	return found
}

// clockSkew is how much later the clock of a node may be than that of the control plane.
const clockSkew = 5 * time.Second

// senderOf returns whose an address was then, among the pods that have it, or have had it last: the youngest that was there.
func senderOf(pods []corev1.Pod, seen time.Time) (podAt, bool) {
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
		return podAt{}, false
	case youngest.Spec.HostNetwork:
		return podAt{node: youngest.Spec.NodeName}, true
	}
	return podAt{pod: youngest.Namespace + "/" + youngest.Name, node: youngest.Spec.NodeName}, true
}
