//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/test/harness"
)

// join is the label of a pod that joins the mesh in a namespace without injection.
const join = "kuma.io/sidecar-injection"

// TestRollsIn has a Deployment that joins the mesh pod by pod under load, in PERMISSIVE mode, and is scaled down and
// up, beside a Deployment that never joins. Pods without a mesh are replaced the same way: if no request fails there,
// none may fail in the mesh.
func TestRollsIn(t *testing.T) {
	t.Parallel()
	inMesh, plain := same(t, (*namespace).roll)
	for _, name := range slices.Sorted(maps.Keys(plain)) {
		t.Logf("%s: in the mesh %v; without %v", name, inMesh[name], plain[name])
		if inMesh[name].Failed > 0 && plain[name].Failed == 0 {
			t.Errorf("%s: calls have failed that do not fail without a mesh: %v", name, inMesh[name])
		}
		if inMesh[name].Calls == 0 {
			t.Errorf("%s: no call was made", name)
		}
	}
}

// rolled is the Deployment that joins the mesh, if the namespace is in one.
const rolled, never = "rolled", "never"

// roll returns the reports of all loads.
func (n *namespace) roll() map[string]harness.Report {
	n.t.Helper()
	// Only pods that request it are in the mesh.
	value := "disabled"
	if n.injected {
		value = "enabled"
	}
	client, still := newPod("client", "node1"), newPod("still", "node2")
	client.Labels[join], still.Labels[join] = value, value
	stranger := newPod("stranger", "node1")
	stranger.Labels[join] = "disabled"
	joins, stays := newDeployment(rolled, 3, map[string]string{join: "disabled"}), newDeployment(never, 2, map[string]string{join: "disabled"})
	serveOn(&joins.Spec.Template.Spec, 10*time.Second)
	serveOn(&stays.Spec.Template.Spec, 10*time.Second)
	n.create(client, stranger, still, newService("still"), newService(rolled), newService(never), joins, stays)
	n.waitReady("client", "stranger", "still")
	n.waitRolledOut(rolled)
	n.waitRolledOut(never)

	loads := map[string]load{}
	for _, from := range []string{"client", "stranger"} {
		a := n.app(from)
		a.waitCall("http://%s.%s/", rolled, n.name)
		for _, to := range []string{rolled, never} {
			name := to + "." + n.name
			loads[from+" http "+to] = a.startLoad("http", "http://"+name+"/")
			loads[from+" http-new "+to] = a.startLoad("http-new", "http://"+name+"/")
			loads[from+" grpc "+to] = a.startLoad("grpc", name+":81")
		}
		loads[from+" tcp still"] = a.startLoad("tcp", "still."+n.name+":82")
	}
	n.restart(rolled, map[string]string{join: value, "version": "2"})
	n.restart(never, map[string]string{"version": "2"})
	n.waitRolledOut(rolled)
	n.waitRolledOut(never)
	for _, replicas := range []int32{1, 3} {
		n.scale(rolled, replicas)
		n.scale(never, min(replicas, 2))
		n.waitRolledOut(rolled)
		n.waitRolledOut(never)
	}
	reports := map[string]harness.Report{}
	for name, l := range loads {
		l.waitMore(10)
		reports[name] = l.stop()
	}
	if n.injected {
		if a := n.app("client").waitCall("http://%s.%s/", rolled, n.name); a.Headers.Get("X-Forwarded-Client-Cert") == "" {
			n.t.Errorf("%s is in the mesh, but does not see its client: %+v", rolled, a)
		}
	}
	return reports
}

// newDeployment returns a Deployment on node 2.
func newDeployment(name string, replicas int32, labels map[string]string) *appsv1.Deployment {
	p := newPod(name, "node2")
	maps.Copy(p.Labels, labels)
	return &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(replicas), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: p.Labels, Annotations: p.Annotations}, Spec: p.Spec},
		},
	}
}

func (n *namespace) patchDeployment(name, patch string) {
	n.t.Helper()
	_, err := cluster.client.AppsV1().Deployments(n.name).Patch(n.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
}

// restart adds labels to the pod template of a Deployment, which replaces all its pods in one rollout.
func (n *namespace) restart(deployment string, labels map[string]string) {
	n.t.Helper()
	for key, value := range labels {
		n.patchDeployment(deployment, fmt.Sprintf(`{"spec": {"paused": true, "template": {"metadata": {"labels": {%q: %q}}}}}`, key, value))
	}
	n.patchDeployment(deployment, `{"spec": {"paused": false}}`)
}

func (n *namespace) scale(deployment string, replicas int32) {
	n.t.Helper()
	n.patchDeployment(deployment, fmt.Sprintf(`{"spec": {"replicas": %d}}`, replicas))
}

// waitRolledOut waits until a Deployment has only new and ready pods, and the old pods no longer exist.
func (n *namespace) waitRolledOut(name string) {
	n.t.Helper()
	n.waitRolledOutAs(name, "app="+name)
}

// waitRolledOutAs is waitRolledOut for pods with other labels.
func (n *namespace) waitRolledOutAs(name, labels string) {
	n.t.Helper()
	n.wait("the pods of "+name, func() error {
		d, err := cluster.client.AppsV1().Deployments(n.name).Get(n.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		want, s := *d.Spec.Replicas, d.Status
		if s.ObservedGeneration < d.Generation || s.UpdatedReplicas != want || s.Replicas != want || s.ReadyReplicas != want {
			return fmt.Errorf("want %d: %+v", want, s)
		}
		pods, err := cluster.client.CoreV1().Pods(n.name).List(n.t.Context(), metav1.ListOptions{LabelSelector: labels})
		if err == nil && len(pods.Items) != int(want) {
			err = fmt.Errorf("%d pods, want %d", len(pods.Items), want)
		}
		return err
	})
}

// kinds are the kinds of calls while pods are replaced.
var kinds = []string{"http", "http-new", "http2", "post", "post-new", "grpc"}

// manners are how applications end, as their flag --grace: at once, or after a time for clients to use other pods.
var manners = map[string]time.Duration{"abrupt": 0, "polite": 3 * time.Second}

// TestRolls replaces pods whose applications end on SIGTERM, in each manner, three times, under load from outside and
// inside of the mesh. Calls that fail without a mesh may fail in the mesh. A call that no application received gets a
// 503 only before the sidecar detects the deletion, which takes a moment on a busy machine.
func TestRolls(t *testing.T) {
	t.Parallel()
	for manner, grace := range manners {
		t.Run(manner, func(t *testing.T) {
			inMesh, plain := same(t, func(n *namespace) map[string]harness.Report { return n.rollAll(manner, grace) })
			for _, from := range []string{"stranger", "client"} {
				compareRolls(t, from, inMesh, plain)
			}
		})
	}
}

// compareRolls compares the share of failed calls.
func compareRolls(t *testing.T, from string, inMesh, plain map[string]harness.Report) {
	t.Helper()
	var failed, failedPlain, calls, callsPlain int
	for _, kind := range kinds {
		name := from + " " + kind
		t.Logf("%s: in the mesh %v; without %v", name, inMesh[name], plain[name])
		calls += inMesh[name].Calls
		callsPlain += plain[name].Calls
		failed += inMesh[name].Failed
		failedPlain += plain[name].Failed
	}
	share, sharePlain := float64(failed)/float64(calls), float64(failedPlain)/float64(callsPlain)
	t.Logf("%s: %d of %d calls have failed in the mesh (%.2f %%), %d of %d without (%.2f %%)", from, failed, calls, 100*share, failedPlain, callsPlain, 100*sharePlain)
	if share > 2*sharePlain+0.005 { // which calls meet the end of a pod is random
		t.Errorf("%s: more calls have failed in the mesh", from)
	}
}

// rollAll replaces all pods of a Deployment several times, and returns the reports of all loads.
func (n *namespace) rollAll(name string, grace time.Duration) map[string]harness.Report {
	n.t.Helper()
	client, stranger := newPod("client", "node1"), newPod("stranger", "node1")
	stranger.Labels[join] = "disabled"
	d := newDeployment(name, 3, nil)
	serveOn(&d.Spec.Template.Spec, grace)
	n.create(client, stranger, newService(name), d)
	n.waitReady("client", "stranger")
	n.waitRolledOut(name)
	loads := map[string]load{}
	for _, from := range []string{"client", "stranger"} {
		a := n.app(from)
		a.waitCall("http://%s.%s/", name, n.name)
		for _, kind := range kinds {
			target := "http://" + name + "." + n.name + "/"
			if kind == "grpc" {
				target = name + "." + n.name + ":81"
			}
			loads[from+" "+kind] = a.startLoad(kind, target)
		}
	}
	for version := range 3 {
		n.restart(name, map[string]string{"version": strconv.Itoa(version)})
		n.waitRolledOut(name)
	}
	reports := map[string]harness.Report{}
	for name, l := range loads {
		l.waitMore(10)
		reports[name] = l.stop()
	}
	return reports
}
