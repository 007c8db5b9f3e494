//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/controller/leader"
	"github.com/sonde-mesh/sonde/test/harness"
)

// Each load makes 25 calls per second (test/app): 200 in total.
const loads = 8

// traffic is a client on node 1 in the mesh that calls a Service with pods on the other nodes.
type traffic struct {
	*namespace
	loads []load
	pods  []string
}

func newTraffic(t *testing.T) *traffic {
	t.Helper()
	n := newNamespace(t, injected)
	d := newDeployment("web", int32(len(cluster.nodes)-1), nil)
	spec := &d.Spec.Template.Spec
	spec.NodeName = ""
	spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: []string{"node1"}},
		}}},
	}}}
	spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
	}}
	n.create(d, newService("web"), newPod("client", "node1"))
	n.waitReady("client")
	n.waitRolledOut("web")
	r := &traffic{namespace: n, pods: n.podsOf("web")}
	client := n.app("client")
	client.waitCall("http://web.%s/", n.name)
	for i := range loads {
		r.loads = append(r.loads, client.startLoad("http", fmt.Sprintf("http://web.%s/?load=%d", n.name, i)))
	}
	r.waitFreezeJudges()
	return r
}

// waitFreezeJudges waits until the leader judges nodes: in its first minute, a replica does not.
func (r *traffic) waitFreezeJudges() {
	r.t.Helper()
	r.wait("the freeze to be judged", func() error {
		lease, err := cluster.client.CoordinationV1().Leases(systemNamespace).Get(r.t.Context(), leader.LeaseName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		freeze, err := cluster.client.CoreV1().Secrets(systemNamespace).Get(r.t.Context(), "sonde-freeze", metav1.GetOptions{})
		if err != nil {
			return err
		}
		var judged struct {
			Epoch json.Number `json:"epoch"`
		}
		err = json.Unmarshal(freeze.Data["freeze"], &judged)
		if leads := lease.Annotations[leader.AnnotationEpoch]; err == nil && judged.Epoch.String() != leads {
			err = fmt.Errorf("the verdict has epoch %s, want the leader's, %s", judged.Epoch, leads)
		}
		return err
	})
}

// report returns the result of all loads so far.
func (r *traffic) report() harness.Report {
	r.t.Helper()
	sum := harness.Report{Instances: map[string]int{}, Reasons: map[string]int{}}
	for _, l := range r.loads {
		one := l.report()
		sum.Calls += one.Calls
		sum.Failed += one.Failed
		for name, n := range one.Instances {
			sum.Instances[name] += n
		}
		for reason, n := range one.Reasons {
			sum.Reasons[reason] += n
		}
	}
	return sum
}

// checkServed fails the test if a call has failed, or if a pod has not responded since a report. If nodes are
// Unknown, that needs a mesh that freezes.
func (r *traffic) checkServed(when string, since harness.Report) {
	r.t.Helper()
	now := r.report()
	if now.Failed > 0 {
		r.t.Errorf("%s: %v", when, now)
	}
	for _, pod := range r.pods {
		if now.Instances[pod] <= since.Instances[pod] {
			r.t.Errorf("%s: pod %s has stopped answering: %v, before %v", when, pod, now.Instances, since.Instances)
		}
	}
}

// waitServed waits until calls succeed again, and these pods respond.
func (r *traffic) waitServed(pods []string) {
	r.t.Helper()
	r.wait("calls that all succeed", func() error {
		before := r.report()
		for _, l := range r.loads { // a call to a dead pod may take until its timeout
			l.waitMore(50)
		}
		now := r.report()
		if now.Failed > before.Failed {
			return fmt.Errorf("%d more have failed: %v", now.Failed-before.Failed, now)
		}
		for _, pod := range pods {
			if now.Instances[pod] == before.Instances[pod] {
				return fmt.Errorf("%s does not answer", pod)
			}
		}
		return nil
	})
}
