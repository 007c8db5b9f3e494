package restarts

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// cluster holds the input of decisions: the guarded pods, the desired number of pods per workload, and the budgets that
// select them.
type cluster struct {
	pods         *watch.Store[*corev1.Pod, pod]
	deployments  *watch.Store[*appsv1.Deployment, deployment]
	statefulSets *watch.Store[*appsv1.StatefulSet, int]
	daemonSets   *watch.Store[*appsv1.DaemonSet, int]
	disruption   *watch.Store[*policyv1.PodDisruptionBudget, disruption]
	budgets      *watch.Store[*v1alpha1.RestartBudget, budget]

	disruptionMatches *matches[disruption]
	budgetMatches     *matches[budget]
}

// disruption is the record of a PodDisruptionBudget. It has only the spec, since the status is updated late and
// reserves nothing.
type disruption struct {
	created  time.Time
	selector *keptSelector
	limit    restartbudget.Limit
	// tooLarge is why its selector is not kept, so that the budget applies to all pods of its namespace; "" if it is
	// kept.
	tooLarge string
}

// podShare bounds the pods of a namespace. A pod beyond the share is treated as ended: it gets no grant, so its
// failures are held.
func podShare(memory uint64) watch.Share[pod] {
	return watch.Share[pod]{Bytes: watch.ShareOf(memory), Beyond: func(p *pod) pod { return pod{uid: p.uid, ended: true} }}
}

// newCluster takes clients of the API server without a timeout (sonde is for group sonde.dev), and the memory limit of
// this process. It calls changed after each change that matters for decisions, and granted for each pod whose grants
// may have changed.
func newCluster(client kubernetes.Interface, sonde rest.Interface, memory uint64, changed func(),
	granted func(watch.Key), logger *slog.Logger) *cluster {
	apps := client.AppsV1().RESTClient()
	c := &cluster{}
	*c = cluster{
		pods: watch.New(watch.Kind[*corev1.Pod, pod]{
			Client: client.CoreV1().RESTClient(), Resource: "pods", Labels: mesh.LabelMesh, New: &corev1.Pod{}, Synced: changed,
			Record: c.record, Share: podShare(memory),
			Changed: func(key watch.Key, before, now *pod) {
				if now != nil && !before.sameGrants(now) {
					granted(key)
				}
				if before.guarded() || now.guarded() { // other pods do not affect decisions
					changed()
				}
			},
		}),
		deployments: watch.New(watch.Kind[*appsv1.Deployment, deployment]{
			Client: apps, Resource: "deployments", New: &appsv1.Deployment{}, Synced: changed,
			Changed: func(watch.Key, *deployment, *deployment) { changed() },
			Record: func(d *appsv1.Deployment) (deployment, bool) {
				return deployment{replicasOf(d.Spec.Replicas), d.UID}, true
			},
		}),
		statefulSets: watch.New(watch.Kind[*appsv1.StatefulSet, int]{
			Client: apps, Resource: "statefulsets", New: &appsv1.StatefulSet{}, Synced: changed,
			Changed: func(watch.Key, *int, *int) { changed() },
			Record:  func(s *appsv1.StatefulSet) (int, bool) { return replicasOf(s.Spec.Replicas), true },
		}),
		daemonSets: watch.New(watch.Kind[*appsv1.DaemonSet, int]{
			Client: apps, Resource: "daemonsets", New: &appsv1.DaemonSet{}, Synced: changed,
			Changed: func(watch.Key, *int, *int) { changed() },
			Record:  func(d *appsv1.DaemonSet) (int, bool) { return int(d.Status.DesiredNumberScheduled), true },
		}),
		disruption: watch.New(watch.Kind[*policyv1.PodDisruptionBudget, disruption]{
			Client: client.PolicyV1().RESTClient(), Resource: "poddisruptionbudgets", New: &policyv1.PodDisruptionBudget{},
			Synced: changed,
			Record: readDisruption,
			Changed: func(key watch.Key, before, now *disruption) {
				if now != nil && now.tooLarge != "" && (before == nil || before.tooLarge != now.tooLarge) {
					logger.Warn("selector of a PodDisruptionBudget is too large, it counts for all pods of its namespace",
						"namespace", key.Namespace, "name", key.Name, "err", now.tooLarge)
				}
				changed()
			},
		}),
		budgets: newBudgets(sonde, changed, logger),

		disruptionMatches: newMatches(func(d *disruption) *keptSelector { return d.selector }),
		budgetMatches:     newMatches(func(b *budget) *keptSelector { return b.selector }),
	}
	return c
}

// replicasOf returns n, or Kubernetes' default.
func replicasOf(n *int32) int {
	if n == nil {
		return 1
	}
	return int(*n)
}

// readDisruption returns false for a budget that selects nothing, or that Kubernetes ignores, too. A budget whose
// selector is too large applies to all pods of its namespace, since ignoring it would lift a limit.
func readDisruption(b *policyv1.PodDisruptionBudget) (disruption, bool) {
	if b.Spec.Selector == nil {
		return disruption{}, false
	}
	d := disruption{created: b.CreationTimestamp.Time, limit: restartbudget.Limit{
		Name: b.Namespace + "/" + b.Name, MaxUnavailable: amountOf(b.Spec.MaxUnavailable),
		MinAvailable: amountOf(b.Spec.MinAvailable),
	}}
	var err error
	if d.selector, err = boundedSelector(b.Spec.Selector); errors.Is(err, errTooLarge) {
		d.selector, d.tooLarge = everything, "spec.selector: "+err.Error()
		err = nil
	}
	return d, err == nil
}

// amountOf returns nil for a value that the API server would have rejected.
func amountOf(v *intstr.IntOrString) *restartbudget.Amount {
	if v == nil {
		return nil
	}
	if v.Type == intstr.Int {
		return &restartbudget.Amount{Value: v.IntValue()}
	}
	share, is := strings.CutSuffix(v.StrVal, "%")
	n, err := strconv.Atoi(share)
	if err != nil || !is || n < 0 {
		return nil
	}
	return &restartbudget.Amount{Value: n, Percent: true}
}

// run follows the cluster until ctx ends, and then returns nil.
func (c *cluster) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, task := range []func(context.Context) error{c.pods.Run, c.deployments.Run, c.statefulSets.Run, c.daemonSets.Run,
		c.disruption.Run, c.budgets.Run} {
		group.Go(func() error { return task(ctx) })
	}
	return group.Wait()
}

// missing returns what has not been read yet, nil once all has been read.
func (c *cluster) missing() error {
	return errors.Join(c.pods.Missing(), c.deployments.Missing(), c.statefulSets.Missing(), c.daemonSets.Missing(),
		c.disruption.Missing(), c.budgets.Missing())
}

// lost returns since when any watch has been disconnected, zero if all are connected.
func (c *cluster) lost() watch.Loss {
	return watch.First(c.pods.Lost(), c.deployments.Lost(), c.statefulSets.Lost(), c.daemonSets.Lost(),
		c.disruption.Lost(), c.budgets.Lost())
}

// input returns the input of decisions, and the pods by UID.
func (c *cluster) input(
	liveness map[watch.Key]agentv1.ReportedLiveness,
) (in restartbudget.Input, pods map[string]watch.Key) {
	in.Workloads, pods = map[restartbudget.WorkloadID]*restartbudget.Workload{}, map[string]watch.Key{}
	guarded := map[restartbudget.WorkloadID]bool{}
	disruptions := c.selectDisruptions()
	budgets := c.selectBudgets()
	for _, key := range c.pods.Keys() {
		p := c.pods.Get(key)
		if p == nil || p.ended {
			continue // deleted meanwhile
		}
		pods[p.uid] = key
		w := in.Workloads[p.workload]
		if w == nil {
			w = &restartbudget.Workload{Pods: map[string]*restartbudget.Pod{}}
			in.Workloads[p.workload] = w
		}
		counted := p.Pod
		counted.Containers = make([]restartbudget.Container, len(p.Containers))
		said := liveness[key]
		counted.Reported = said.At
		for i, container := range p.Containers {
			counted.Containers[i] = judge(container, said.Report)
		}
		w.Pods[p.uid] = &counted
		if !p.guarded() {
			continue
		}
		in.Requests = append(in.Requests, requests(p, said)...)
		disruptions.of(key.Namespace, p)
		budgets.of(key.Namespace, p)
		guarded[p.workload] = true
		if !p.Native {
			in.Guarded += len(p.Containers)
		}
	}
	for id, w := range in.Workloads {
		if !guarded[id] {
			delete(in.Workloads, id)
			continue
		}
		for _, d := range disruptions.ofWorkload(id) {
			w.Disruption = append(w.Disruption, d.limit)
		}
		w.Budgets, w.Replicas = limitsOf(budgets.ofWorkload(id)), c.desired(id, w)
	}
	return in, pods
}

// judge adds to a container whether its liveness probe has passed since its last restart.
func judge(c restartbudget.Container, said *agentv1.Liveness) restartbudget.Container {
	if slices.Contains(said.GetPassing(), c.Name) {
		c.Passed = c.Restarts
	}
	return c
}

// requests returns a pod's requests: one for each guarded container that fails, has no grant and has not ended. Only
// containers that the pod's own probe table guards are included.
func requests(p *pod, said agentv1.ReportedLiveness) []restartbudget.Request {
	var all []restartbudget.Request
	for _, h := range said.Report.GetHeld() {
		for i := range p.Containers {
			if h.GetGrant() == "" && p.Containers[i].Name == h.GetContainer() && !p.instances[i].ended {
				all = append(all, restartbudget.Request{
					ContainerKey: restartbudget.ContainerKey{PodUID: p.uid, Name: h.GetContainer()}, Workload: p.workload,
					Restarts: p.Containers[i].Restarts, Since: said.Since(h),
				})
			}
		}
	}
	return all
}

// desired returns the desired number of a workload's pods; for an unknown kind, the current number.
func (c *cluster) desired(id restartbudget.WorkloadID, w *restartbudget.Workload) int {
	if n, known := c.replicas(id); known {
		return n
	}
	return len(w.Pods)
}

// replicas returns the desired number of a workload's pods, and false if it is unknown.
func (c *cluster) replicas(id restartbudget.WorkloadID) (int, bool) {
	key := watch.Key{Namespace: id.Namespace, Name: id.Name}
	var n *int
	switch id.Kind {
	case "Deployment":
		if d := c.deployments.Get(key); d != nil {
			n = &d.replicas
		}
	case "StatefulSet":
		n = c.statefulSets.Get(key)
	case "DaemonSet":
		n = c.daemonSets.Get(key)
	case "Pod":
		return 1, true
	}
	if n == nil {
		return 0, false
	}
	return *n, true
}
