package cluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Labels of the chart's pods with a control plane.
const (
	labelName    = "app.kubernetes.io/name"
	labelRelease = "app.kubernetes.io/instance"
	chartName    = "sonde"
)

// Plane is the control plane of one release of the chart.
type Plane struct {
	Namespace, Release string
	Replicas           []corev1.Pod
}

// String names the release, for users.
func (p Plane) String() string {
	return fmt.Sprintf("release %q in namespace %q", p.Release, p.Namespace)
}

// Find returns the control plane that is meant. Errors are for users, with exit codes.
func (c *Cluster) Find(ctx context.Context) (Plane, error) {
	pods, err := c.list(ctx)
	if err != nil {
		return Plane{}, c.Explain("find the control plane", err)
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
	several := "there are several control planes: " + strings.Join(texts, ", ")
	if planes[0].Namespace == planes[len(planes)-1].Namespace {
		return Plane{}, fmt.Errorf("%s: those of one namespace cannot be told apart: reach one with --address, or install it in a namespace that --%s can name", several, FlagNamespace)
	}
	return Plane{}, &mesh.FieldError{Field: "--" + FlagNamespace, Allowed: "must be given: " + several}
}

// list returns the pods of control planes: those of the namespace that the caller names, else of all, and where they may not be listed of the default one.
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

// PlanesOf returns the control planes that pods are replicas of, sorted. Other pods are ignored.
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

// none says that there is no control plane where it should be.
func (c *Cluster) none(ctx context.Context) error {
	namespace := cmp.Or(c.namespace, DefaultNamespace)
	is := fmt.Sprintf("has no control plane: no pod has the label %s=%s", labelName, chartName)
	if _, err := c.Client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		is = "does not exist"
	}
	return unreachable(fmt.Errorf("find the control plane: namespace %q of the cluster at %s %s: install Sonde there, name another namespace with --%s, or an address with --address",
		namespace, c.Config.Host, is, FlagNamespace))
}

// ready returns the names of the replicas that are Ready, in no order, so that callers spread over them. The error says why none is.
func (p Plane) ready() ([]string, error) {
	var ready, problems []string
	for i := range p.Replicas {
		pod := &p.Replicas[i]
		if problem := NotReady(pod); problem != "" {
			problems = append(problems, pod.Name+" ("+problem+")")
			continue
		}
		ready = append(ready, pod.Name)
	}
	if len(ready) == 0 {
		slices.Sort(problems)
		return nil, unreachable(fmt.Errorf("no replica of the control plane in namespace %q is Ready: %s", p.Namespace, strings.Join(problems, ", ")))
	}
	rand.Shuffle(len(ready), func(i, j int) { ready[i], ready[j] = ready[j], ready[i] }) //nolint:gosec // which replica it is matters to nobody
	return ready, nil
}

// NotReady returns why a pod is not Ready, "" if it is.
func NotReady(p *corev1.Pod) string {
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
