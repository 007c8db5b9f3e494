//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
)

// watchdogNamespace contains the WatchedCluster and its dependants: `make e2e-watchdog` has the chart grant the
// watchdog its rights there.
const watchdogNamespace = "default"

// replaceAfter is how long a node is Unknown before the test's machine controller deletes it, by default.
const replaceAfter = 30 * time.Second

// original has the dependants with their replicas.
var original = map[string]int32{"machines": 1, "controller": 2, "autoscaler": 1}

// dependants are in namespace watchdogNamespace, on node 1, which is never disconnected: in a real cluster, they run
// elsewhere, too. machines is test/machines.
const dependants = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: machines}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: e2e-machines}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [list, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: e2e-machines}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: e2e-machines}
subjects: [{kind: ServiceAccount, name: machines, namespace: ` + watchdogNamespace + `}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: machines}
spec:
  replicas: 1
  selector: {matchLabels: {app: machines}}
  template:
    metadata: {labels: {app: machines}}
    spec:
      serviceAccountName: machines
      nodeSelector: {kubernetes.io/hostname: node1}
      containers: [{name: machines, image: "docker.io/sonde-test/machines:1", args: ["--after=%s"]}]
`

// watchedCluster has several levels in each direction. The real controller-manager is not a dependant: without it, no
// node would become Unknown. By default nodes expire after 30 s, and the watchdog may detect the last one so late
// that the first is already Unknown (docs/watchdog.md, "How soon").
const watchedCluster = `
apiVersion: sonde.dev/v1alpha1
kind: WatchedCluster
metadata: {name: e2e}
spec:
  local: true
  paused: %t
  settings: {probeInterval: 5s, initialDelay: 0s, kcmNodeMonitorGraceDuration: 40s, leaseExpiryFraction: 0.5}
  dependants:
  - {ref: {apiVersion: apps/v1, kind: Deployment, name: machines}, scaleDown: {level: 0}, scaleUp: {level: 1}}
  - {ref: {apiVersion: apps/v1, kind: Deployment, name: autoscaler}, optional: true, scaleDown: {level: 0}, scaleUp: {level: 2}}
  - {ref: {apiVersion: apps/v1, kind: Deployment, name: controller}, scaleDown: {level: 1, initialDelay: %s}, scaleUp: {level: 0}}
`

// scene is a cluster of four nodes in two zones that the watchdog watches.
type scene struct {
	*namespace
	seen *sightings
}

// sceneOptions are the differences between tests.
type sceneOptions struct {
	// paused makes the watchdog scale nothing.
	paused bool
	// delay is the delay between the two levels of scaling down.
	delay time.Duration
	// replaceAfter is how long a node is Unknown before its machine is replaced. Default 30 s.
	replaceAfter time.Duration
}

// newScene has the watchdog watch the cluster, and records its actions, until the test ends.
func newScene(t *testing.T, o sceneOptions) *scene {
	t.Helper()
	checkZones(t)
	t.Cleanup(func() { replaceDeleted(t) }) // also after a failure: the next test needs them
	s := &scene{namespace: &namespace{t: t, name: watchdogNamespace}}
	t.Cleanup(s.remove)
	stays := func(name string) any {
		d := newDeployment(name, original[name], nil)
		d.Spec.Template.Spec.NodeName, d.Spec.Template.Spec.NodeSelector = "", map[string]string{corev1.LabelHostname: "node1"}
		return d
	}
	s.create(fmt.Sprintf(dependants, cmp.Or(o.replaceAfter, replaceAfter)), stays("controller"), stays("autoscaler"))
	for name := range original {
		s.waitRolledOut(name)
	}
	s.create(fmt.Sprintf(watchedCluster, o.paused, o.delay))
	s.waitVerdict("seen", "")
	s.seen = follow(t)
	return s
}

// checkZones fails the test unless `make e2e-watchdog` created the cluster.
func checkZones(t *testing.T) {
	t.Helper()
	nodes, err := cluster.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var zones []string
	for i := range nodes.Items {
		zones = append(zones, nodes.Items[i].Labels[corev1.LabelTopologyZone])
	}
	if !slices.Equal(zones, []string{"a", "b", "a", "b"}) {
		t.Fatalf("nodes are in the zones %q, want four nodes in a, b, a, b: `make e2e-watchdog` starts such a cluster", zones)
	}
}

// remove deletes the objects of newScene, and waits until the pods no longer exist: the next scene uses the same
// names.
func (s *scene) remove() {
	ctx := context.WithoutCancel(s.t.Context())
	if s.t.Failed() {
		s.t.Log(s.describe(ctx), (&namespace{name: systemNamespace}).describe(ctx))
	}
	for _, end := range s.ends {
		end(ctx)
	}
	errs := []error{
		s.clusters().Delete(ctx, "e2e", metav1.DeleteOptions{}),
		cluster.client.CoreV1().ServiceAccounts(s.name).Delete(ctx, "machines", metav1.DeleteOptions{}),
	}
	foreground := metav1.DeletePropagationForeground
	for name := range original {
		errs = append(errs, cluster.client.AppsV1().Deployments(s.name).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &foreground}))
	}
	for _, err := range errs {
		if err != nil && !apierrors.IsNotFound(err) {
			s.t.Error(err)
		}
	}
	wait(s.t, "the end of the dependants", func() error {
		left, err := cluster.client.AppsV1().Deployments(s.name).List(ctx, metav1.ListOptions{})
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("there are %d", len(left.Items))
		}
		return err
	})
}

func (s *scene) clusters() dynamic.ResourceInterface {
	s.t.Helper()
	client, err := newClient(func(string) {})
	if err != nil {
		s.t.Fatal(err)
	}
	return client.Resource(v1alpha1.GroupVersion.WithResource("watchedclusters")).Namespace(s.name)
}

// status returns the status of the WatchedCluster.
func (s *scene) status() (v1alpha1.WatchedClusterStatus, error) {
	s.t.Helper()
	var c v1alpha1.WatchedCluster
	u, err := s.clusters().Get(s.t.Context(), "e2e", metav1.GetOptions{})
	if err != nil {
		return c.Status, err
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &c)
	return c.Status, err
}

// waitVerdict waits until the watchdog has this verdict about the nodes.
func (s *scene) waitVerdict(verdict, cause string) v1alpha1.WatchedClusterStatus {
	s.t.Helper()
	var status v1alpha1.WatchedClusterStatus
	s.wait("the verdict "+verdict+" "+cause, func() (err error) {
		if status, err = s.status(); err == nil && (status.Verdict != verdict || status.Cause != cause) {
			err = fmt.Errorf("the status is %+v", status)
		}
		return err
	})
	return status
}

// waitReplicas waits until dependants have these replicas.
func (s *scene) waitReplicas(want map[string]int32) {
	s.t.Helper()
	s.wait(fmt.Sprintf("replicas %v", want), func() error {
		for name, n := range want {
			d, err := cluster.client.AppsV1().Deployments(s.name).Get(s.t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if *d.Spec.Replicas != n {
				return fmt.Errorf("%s has %d", name, *d.Spec.Replicas)
			}
		}
		return nil
	})
}

// annotations returns the watchdog's annotations of a dependant, by the last part of their names.
func (s *scene) annotations(name string) map[string]string {
	s.t.Helper()
	d, err := cluster.client.AppsV1().Deployments(s.name).Get(s.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	found := map[string]string{}
	for key, value := range d.Annotations {
		if short, is := strings.CutPrefix(key, "dependency-watchdog.gardener.cloud/"); is {
			found[short] = value
		}
	}
	return found
}

// waitWell waits until all nodes are seen and Ready, and dependants have these replicas, their pods, and no
// annotation of the watchdog.
func (s *scene) waitWell(want map[string]int32) {
	s.t.Helper()
	waitNodes(s.t, cluster.nodes...)
	s.wait("all steps to be done", func() error {
		status, err := s.status()
		if err == nil && (status.Verdict != "seen" || status.LostSince != nil || len(status.Steps) > 0) {
			err = fmt.Errorf("the status is %+v", status)
		}
		return err
	})
	s.waitReplicas(want)
	for name := range want {
		s.waitRolledOut(name)
		if left := s.annotations(name); len(left) > 0 {
			s.t.Errorf("%s has the annotations %v", name, left)
		}
	}
}

// waitNodes waits until nodes exist and are Ready.
func waitNodes(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		wait(t, name+" to be Ready", func() error {
			node, err := cluster.client.CoreV1().Nodes().Get(context.WithoutCancel(t.Context()), name, metav1.GetOptions{})
			if err == nil && readyOf(node) != corev1.ConditionTrue {
				err = fmt.Errorf("Ready is %q", readyOf(node))
			}
			return err
		})
	}
}

// readyOf returns the condition Ready of a node.
func readyOf(n *corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}

// cutKubelets disconnects the kubelets of all nodes except the first from the API server, until heal is called or the
// test ends.
func cutKubelets(t *testing.T) (heal func()) {
	t.Helper()
	link := func(state string) {
		t.Helper()
		for node := 2; node <= len(cluster.nodes); node++ {
			testbed(t, "link", strconv.Itoa(node), "--to=apiserver", state)
		}
	}
	t.Cleanup(func() { link("up") })
	link("down")
	return func() { link("up") }
}

// replaceDeleted makes the kubelets of deleted nodes register again, like the kubelets of new machines, and waits for
// all nodes.
func replaceDeleted(t *testing.T) {
	t.Helper()
	there, err := nodeUIDs(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range cluster.nodes {
		if _, is := there[name]; is {
			continue
		}
		kubelet := "kubelet" + strings.TrimPrefix(name, "node")
		testbed(t, "stop", kubelet)
		testbed(t, "start", kubelet)
	}
	waitNodes(t, cluster.nodes...)
}

// nodeUIDs returns the UIDs of the existing nodes.
func nodeUIDs(ctx context.Context) (map[string]types.UID, error) {
	nodes, err := cluster.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	uids := map[string]types.UID{}
	for i := range nodes.Items {
		uids[nodes.Items[i].Name] = nodes.Items[i].UID
	}
	return uids, nil
}
