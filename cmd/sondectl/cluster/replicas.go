package cluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// Labels of the control plane's pods in the chart.
const (
	labelName    = "app.kubernetes.io/name"
	labelRelease = "app.kubernetes.io/instance"
	chartName    = "sonde"
)

// Plane is the control plane of one release.
type Plane struct {
	Namespace, Release string
	Replicas           []corev1.Pod
}

// String names the release, for users.
func (p Plane) String() string {
	return fmt.Sprintf("release %q in namespace %q", p.Release, p.Namespace)
}

// Find returns the selected control plane. Its errors are for users, with exit codes.
func (c *Cluster) Find(ctx context.Context) (Plane, error) {
	pods, err := c.list(ctx)
	if err != nil {
		return Plane{}, c.Explain("find control plane", err)
	}
	planes := PlanesOf(pods)
	if c.namespace == "" && len(planes) == 1 && planes[0].Namespace != DefaultNamespace {
		return Plane{}, &mesh.FieldError{Field: "--" + FlagNamespace, Allowed: fmt.Sprintf("must be given: namespace %q has no control plane, but there is %s", DefaultNamespace, planes[0])}
	}
	switch len(planes) {
	case 0:
		return Plane{}, c.none(ctx)
	case 1:
		return planes[0], nil
	}
	texts := make([]string, len(planes))
	for i, p := range planes {
		texts[i] = p.String()
	}
	several := "several control planes found: " + strings.Join(texts, ", ")
	if planes[0].Namespace == planes[len(planes)-1].Namespace {
		return Plane{}, fmt.Errorf("%s: sondectl cannot choose between several in one namespace: use --address, or install them in separate namespaces and use --%s", several, FlagNamespace)
	}
	return Plane{}, &mesh.FieldError{Field: "--" + FlagNamespace, Allowed: "must be given: " + several}
}

// list returns the pods of control planes in the caller's namespace, otherwise in all namespaces, or in the default one
// if the user may not list all.
func (c *Cluster) list(ctx context.Context) ([]corev1.Pod, error) {
	selected := metav1.ListOptions{LabelSelector: labelName + "=" + chartName}
	list, err := c.Client.CoreV1().Pods(c.namespace).List(ctx, selected)
	if c.namespace == "" && apierrors.IsForbidden(err) {
		list, err = c.Client.CoreV1().Pods(DefaultNamespace).List(ctx, selected)
	}
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller explains it
	}
	return list.Items, nil
}

// PlanesOf returns the control planes of replica pods, sorted. Other pods are ignored.
func PlanesOf(pods []corev1.Pod) []Plane {
	type key struct{ namespace, release string }
	replicas := map[key][]corev1.Pod{}
	for _, p := range pods {
		if p.Labels[labelName] != chartName {
			continue
		}
		k := key{p.Namespace, p.Labels[labelRelease]}
		replicas[k] = append(replicas[k], p)
	}
	var planes []Plane
	for _, k := range slices.SortedFunc(maps.Keys(replicas), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.release, b.release))
	}) {
		planes = append(planes, Plane{k.namespace, k.release, replicas[k]})
	}
	return planes
}

// none returns the error for a namespace without a control plane.
func (c *Cluster) none(ctx context.Context) error {
	namespace := cmp.Or(c.namespace, DefaultNamespace)
	is := fmt.Sprintf("has no control plane: no pod has the label %s=%s", labelName, chartName)
	if _, err := c.Client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		is = "does not exist"
	}
	return unreachable(fmt.Errorf("find control plane: namespace %q of the cluster at %s %s: install Sonde there, or set --%s or --address",
		namespace, c.Config.Host, is, FlagNamespace))
}

// replica is a candidate to connect to.
type replica struct {
	pod string
	// lost is the reason why it is not Ready, "" if it is.
	lost string
}

// answering returns the Ready replicas in random order, to spread callers, then replicas on lost nodes: the API server
// may still reach their kubelets. Without any, it returns an error with the reasons.
func (p Plane) answering(nodes map[string]*corev1.Node) ([]replica, error) {
	var ready, lost []replica
	var problems []string
	for i := range p.Replicas {
		pod := &p.Replicas[i]
		switch problem := NotReady(pod, nodes[pod.Spec.NodeName]); {
		case problem == "":
			ready = append(ready, replica{pod: pod.Name})
		case Lost(pod):
			lost = append(lost, replica{pod.Name, problem})
		default:
			problems = append(problems, pod.Name+" ("+problem+")")
		}
	}
	if len(ready)+len(lost) == 0 {
		slices.Sort(problems)
		return nil, unreachable(fmt.Errorf("no replica of the control plane in namespace %q is Ready: %s", p.Namespace, strings.Join(problems, ", ")))
	}
	rand.Shuffle(len(ready), func(i, j int) { ready[i], ready[j] = ready[j], ready[i] }) //nolint:gosec // load balancing, not a secret
	return append(ready, lost...), nil
}

// Lost reports whether the API server has lost the pod's node: the node controller only changes the condition Ready,
// and leaves ContainersReady True. The pod may still run.
func Lost(p *corev1.Pod) bool {
	return len(p.Spec.ReadinessGates) == 0 && podspec.Has(p, corev1.ContainersReady, corev1.ConditionTrue) &&
		podspec.Has(p, corev1.PodReady, corev1.ConditionFalse)
}

// NotReady returns why a pod is not Ready, "" if it is. node is the pod's node if it is Lost; nil means unknown.
func NotReady(p *corev1.Pod, node *corev1.Node) string {
	if Lost(p) {
		return lostNode(p.Spec.NodeName, node)
	}
	if p.DeletionTimestamp != nil {
		return "it is being deleted"
	}
	for _, s := range p.Status.ContainerStatuses {
		if w := s.State.Waiting; w != nil {
			return strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
		}
	}
	for _, condition := range p.Status.Conditions {
		switch {
		case condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue:
			return ""
		case condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse:
			return strings.TrimSuffix(condition.Reason+": "+condition.Message, ": ")
		}
	}
	if p.Status.Phase == corev1.PodRunning {
		return "its readiness probe fails"
	}
	return "phase " + string(cmp.Or(p.Status.Phase, corev1.PodPending))
}

// lostNode returns why the node controller has marked a pod, by the node's condition.
func lostNode(name string, node *corev1.Node) string {
	text := "the API server has lost contact with its node " + name
	if node == nil {
		return text
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return fmt.Sprintf("%s: its condition Ready is %s since %s: %s", text, c.Status, c.LastTransitionTime.UTC().Format(time.RFC3339), strings.TrimSuffix(c.Reason+": "+c.Message, ": "))
		}
	}
	return text + ", which is Ready again"
}

// lostNodes returns the nodes of the Lost replicas that the caller may read.
func (c *Cluster) lostNodes(ctx context.Context, p Plane) map[string]*corev1.Node {
	nodes := map[string]*corev1.Node{}
	for i := range p.Replicas {
		pod := &p.Replicas[i]
		if name := pod.Spec.NodeName; Lost(pod) && nodes[name] == nil {
			if node, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err == nil {
				nodes[name] = node
			}
		}
	}
	return nodes
}
