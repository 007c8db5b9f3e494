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
	// Limits of one answer: maxPodsAt addresses, the last seen, are looked up, podsAtOnce at a time, within
	// podsAtTimeout. The rest stay addresses.
	maxPodsAt     = 100
	podsAtOnce    = 8
	podsAtTimeout = 5 * time.Second
)

// Pod is the pod with an address: its name, NAMESPACE/NAME, and its node. The name is empty for pods with hostNetwork,
// which share the address of their node.
type Pod struct{ Name, Node string }

// Pods asks the API server for pods, since the control plane keeps no pods without a sidecar. All fields are required.
type Pods struct {
	Client kubernetes.Interface
	Logger *slog.Logger
}

// At returns the pods with these addresses. last is when each address was last seen: a pod started later is a different
// one.
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
			// Served from the API server's cache, which scans all pods.
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
		p.Logger.WarnContext(ctx, "failed to find all pods that send plaintext", "err", err)
	}
	return found
}

// clockSkew is how far the clock of a node may be ahead of the control plane's.
const clockSkew = 5 * time.Second

// senderOf returns the owner of an address at a time, among the pods that have or had it: the youngest that existed
// then.
func senderOf(pods []corev1.Pod, seen time.Time) (Pod, bool) {
	var youngest *corev1.Pod
	for i := range pods {
		p := &pods[i]
		if started := p.Status.StartTime; started == nil || started.After(seen.Add(clockSkew)) ||
			youngest != nil && started.Before(youngest.Status.StartTime) {
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
