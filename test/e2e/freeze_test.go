//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// These tests also run on the cluster of `make e2e-watchdog`. TestWatchdogKubeletsCutOff checks that the endpoints of
// disconnected nodes stay.

// deadZone is the zone whose nodes the tests stop.
const deadZone = "b"

var deadNodes = []string{"2", "4"}

// All nodes of a zone are dead: calls go to the other zone, and a Service with endpoints only in the dead zone keeps
// them as draining. After the zone is back, all is as before.
func TestFreezeZoneDead(t *testing.T) {
	checkZones(t)
	cp := &namespace{t: t, name: systemNamespace}
	cp.spreadReplicas()
	r := newTraffic(t)
	only := newDeployment("only", 2, nil)
	only.Spec.Template.Spec.NodeName = ""
	only.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: deadZone}
	r.create(only, newService("only"))
	r.waitRolledOut("only")
	client := r.app("client")
	client.waitCall("http://only.%s/", r.name)

	link := func(state string) {
		for _, node := range deadNodes {
			testbed(t, "link", node, state)
		}
	}
	t.Cleanup(func() { // the next test needs the nodes
		link("up")
		waitNodes(t, cluster.nodes...)
	})
	link("down")
	dead := time.Now()
	r.waitFrozen("only", 2)
	r.waitFrozen("web", 2)
	t.Logf("frozen %s after zone %s was dead", time.Since(dead).Round(100*time.Millisecond), deadZone)
	living := slices.DeleteFunc(slices.Clone(r.pods), func(pod string) bool {
		return slices.Contains(deadNodes, strings.TrimPrefix(r.pod(pod).Spec.NodeName, "node"))
	})
	r.waitServed(living)
	before := r.report()
	pass(t, 20*time.Second)
	if now := r.report(); now.Failed > before.Failed {
		t.Errorf("calls fail although zone a has a pod: %v, before %v", now, before)
	}
	r.checkFrozen("only", 2)

	link("up")
	waitNodes(t, cluster.nodes...)
	r.waitServed(r.pods)
	client.waitCall("http://only.%s/", r.name)
	r.waitFrozen("only", 0)
	r.waitFrozen("web", 0)
	t.Log(r.report())
	waitMesh(t)
}

// A rolling update of the control plane freezes nothing, although all sessions and streams end.
func TestFreezeRolled(t *testing.T) {
	checkZones(t)
	cp := &namespace{t: t, name: systemNamespace}
	cp.waitReplicas()
	r := newTraffic(t)
	frozen := func() (n int32) {
		for _, reason := range []string{"Frozen", "NodesLost", "ProxiesLost"} {
			n += cp.countEvents(reason, "")
		}
		return n
	}
	before, start := frozen(), r.report()
	for i := range 2 {
		cp.restart("sonde-cp", map[string]string{"e2e-rolled": strconv.Itoa(i)})
		cp.waitReplicas()
	}
	pass(t, 2*time.Minute) // a new leader judges nothing for its first minutes
	if now := frozen(); now != before {
		t.Errorf("%d events of the freeze, before the control plane was rolled %d", now, before)
	}
	r.checkServed("the control plane was rolled", start)
}

// spreadReplicas waits until a replica of the control plane is outside of the dead zone, and deletes a replica if
// none is.
func (n *namespace) spreadReplicas() {
	n.t.Helper()
	for {
		names := n.waitReplicas()
		if slices.ContainsFunc(names, func(name string) bool {
			return !slices.Contains(deadNodes, strings.TrimPrefix(n.pod(name).Spec.NodeName, "node"))
		}) {
			return
		}
		if err := cluster.client.CoreV1().Pods(n.name).Delete(n.t.Context(), names[0], metav1.DeleteOptions{}); err != nil {
			n.t.Fatal(err)
		}
	}
}

// frozen returns how many endpoints of a Service differ from Kubernetes' state, and sondectl's message
// about it.
func (n *namespace) frozen(service string) (endpoints int, text string, err error) {
	text, err = (&namespace{t: n.t, name: systemNamespace}).sondectl("get", "service", fmt.Sprintf("%s_%s_svc_80", service, n.name), "--mesh=default", "-o=yaml")
	return strings.Count(text, "Frozen: "), text, err
}

// waitFrozen waits until this many endpoints of a Service are frozen.
func (n *namespace) waitFrozen(service string, want int) {
	n.t.Helper()
	n.wait(fmt.Sprintf("%d endpoints of %s to be frozen", want, service), func() error {
		got, text, err := n.frozen(service)
		if err == nil && got != want {
			err = fmt.Errorf("%d are: %s", got, text)
		}
		return err
	})
}

func (n *namespace) checkFrozen(service string, want int) {
	n.t.Helper()
	if got, text, err := n.frozen(service); err != nil || got != want {
		n.t.Errorf("%d endpoints of %s are frozen, want %d: %v, %s", got, service, want, err, text)
	}
}
