package dashboard

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/dashboard"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/watchdog/scale"
)

// scene has an example of what each view shows.
func scene() *stage {
	s := newStage()
	web, checkout, cart := s.workload("shop", "web", 3), s.workload("shop", "checkout", 4), s.workload("shop", "cart", 2)
	ledger, search, redis := s.workload("payments", "ledger", 2), s.workload("shop", "search", 2), s.workload("infra", "redis", 3)
	s.build()
	s.passes(redis[0], 2)
	const refused = "dial tcp: connect: connection refused"
	s.reports(checkout[0], s.probe("app", "startup", "", "success 26h"), s.probe("app", "liveness", "", "success 26h"),
		s.probe("app", "readiness", refused, "success 26h", "failure 41m", "success 38m", "failure 4m"))
	s.reports(cart[0], s.probe("app", "liveness", "HTTP probe failed with statuscode: 500", "success 26h", "held 7m"), s.probe("app", "readiness", "", "success 26h"))
	s.reports(cart[1], s.probe("app", "liveness", "HTTP probe failed with statuscode: 500", "success 26h", "failure 12s"), s.probe("app", "readiness", "", "success 26h"))
	s.reports(web[2], s.probe("app", "liveness", "", "success 26h"), s.probe("app", "readiness", "stopped following the redirect to another host", "success 26h", "warning 2h"))
	for _, id := range ledger {
		_, dataplane := mesh.SplitID(id)
		s.reports(id, s.probe("app", "readiness", "", "success 26h"))
		s.ofPods[dataplane].Unfailing = []*adminv1.UnfailingProbe{{
			Container: "app", Probe: "liveness", Port: 5432,
			Reason: "Envoy accepts each connection to port 5432, whether the application listens or not: remove the annotation kuma.io/virtual-probes: disabled of the pod, so that the agent answers the probe",
		}}
	}
	s.states[search[0]] = &adminv1.AgentState{Phase: adminv1.AgentState_LOST, Since: s.ago(90 * time.Second)}
	delete(s.sessions, search[0])
	delete(s.streams, search[0])
	s.streams[web[1]][0].Types[0] = &adminv1.TypeStatus{Kind: "listeners", Nacks: []*adminv1.Nack{{
		Resource: "inbound:10.0.0.2:8080", Reason: "cannot bind '10.0.0.2:8080': Address already in use", At: s.ago(20 * time.Minute),
	}}}

	s.service("shop", "web", web)
	s.service("shop", "checkout", checkout, checkout[0])
	s.service("shop", "cart", cart)
	s.service("shop", "search", search, search...)
	s.service("payments", "ledger", ledger)
	s.service("infra", "redis", redis)
	s.build()
	s.guarded(cart)
	s.checks()
	return s
}

// workload adds pods of a Deployment, all of whose probes pass.
func (s *stage) workload(namespace, name string, pods int) (all []mesh.ID) {
	for i := range pods {
		id := s.pod(namespace, fmt.Sprintf("%s-5d9c7b8f6d-x2x4%c", name, "bcdf"[i]))
		s.passes(id, 0)
		all = append(all, id)
	}
	return all
}

// guarded has the containers of cart fail.
func (s *stage) guarded(cart []mesh.ID) {
	s.restarts.Guarded, s.restarts.Round = 9, &adminv1.RestartRound{Replica: "sonde-cp-1", Epoch: 7, At: s.ago(0), Mode: "enforce", Failed: 2, Workloads: 1, Guarded: 9, Hold: "errored"}
	for i, id := range cart {
		_, dataplane := mesh.SplitID(id)
		_, pod, _ := mesh.ObjectOf(dataplane)
		r := &adminv1.Restart{
			Namespace: "shop", Pod: pod, Container: "app", Workload: "Deployment/shop/cart", State: adminv1.Restart_WAITING, Since: s.ago(7 * time.Minute), Failure: "HTTP probe failed with statuscode: 500",
			Why: "1 of its 2 pods restarts already", Decision: &adminv1.RestartDecision{Verdict: "held", Reason: "unavailable", Count: 1, Limit: 1, Needs: "waits until the other pod is Ready"},
		}
		if i == 1 {
			r.State, r.Since, r.Why, r.Decision = adminv1.Restart_GRANTED, s.ago(12*time.Second), "the kubelet gets the failure, and restarts it", nil
		}
		s.restarts.Restarts = append(s.restarts.Restarts, r)
	}
}

// checks has a control plane, one of whose peers is away.
func (s *stage) checks() {
	for _, name := range []string{"cluster", "webhook-certificate", "synced"} {
		s.health.Add(health.Readyz, health.Check{Name: name, Run: func(context.Context) error { return nil }})
	}
	s.health.Add(health.Livez, health.Check{Name: "loops", Run: func(context.Context) error { return nil }})
	s.health.Add(health.Readyz, health.Check{Name: "peers", Informational: true, Run: func(context.Context) error {
		return errors.New("sonde-cp-2 disconnected: dial tcp 10.0.7.4:5685: i/o timeout")
	}})
}

// clusters are WatchedClusters and their dependants, which have two replicas each, and none if they are scaled down.
type clusters struct {
	scale.Objects
	all []v1alpha1.WatchedCluster
}

func (c *clusters) open() (dashboard.Clusters, error) { return c, nil }

func (c *clusters) In(string) scale.Objects { return c }

func (c *clusters) List(context.Context, int64) ([]v1alpha1.WatchedCluster, bool, error) {
	return c.all, false, nil
}

func (c *clusters) Get(_ context.Context, ref v1alpha1.DependantRef) (scale.Object, error) {
	if ref.Name == "machine-controller-manager" {
		return scale.Object{}, nil
	}
	return scale.Object{Replicas: 2}, nil
}

// watched has a cluster that has lost a zone, one that has lost all nodes, and one that is well.
func (s *stage) watched() *clusters {
	began := metav1.NewTime(s.ago(3 * time.Minute).AsTime())
	counts := func(a, b int32) []v1alpha1.NodeCount {
		return []v1alpha1.NodeCount{{Nodes: 12, Silent: a + b}, {Zone: "eu-1a", Nodes: 6, Silent: a}, {Zone: "eu-1b", Nodes: 6, Silent: b}}
	}
	c := &clusters{}
	for name, status := range map[string]v1alpha1.WatchedClusterStatus{
		"aws-lost": {Verdict: "lost", Cause: "all", Since: &began, LostSince: &began, Counts: counts(6, 6), Steps: []v1alpha1.ScaleStep{{
			Ref: deployment("machine-controller-manager"), State: "Lowered", Replicas: 2, Since: began,
		}}},
		"gcp-zone": {Verdict: "seen", Since: &began, Counts: counts(0, 6), Zones: []v1alpha1.WatchedZone{{Name: "eu-1b", Verdict: "lost", Cause: "zone", LostSince: &began}}},
		"gcp-well": {Verdict: "seen", Since: &began, Counts: counts(0, 0)},
	} {
		o := v1alpha1.WatchedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "garden", Name: name}, Status: status}
		o.Spec.Local = true
		for i, dependant := range []string{"machine-controller-manager", "kube-controller-manager"} {
			o.Spec.Dependants = append(o.Spec.Dependants, v1alpha1.WatchedDependant{
				Ref: deployment(dependant), ScaleUp: &v1alpha1.ScaleInfo{Level: int32(1 - i)}, ScaleDown: &v1alpha1.ScaleInfo{Level: int32(i)},
			})
		}
		c.all = append(c.all, o)
	}
	return c
}

func deployment(name string) v1alpha1.DependantRef {
	return v1alpha1.DependantRef{APIVersion: "apps/v1", Kind: "Deployment", Name: name}
}
