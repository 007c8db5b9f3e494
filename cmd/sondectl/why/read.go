package why

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/cluster"
	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/webhook"
)

// maxNames limits the names to compare with an unknown name.
const maxNames = 500

// reader reads objects from the API server.
type reader struct{ *cluster.Cluster }

// Read reads facts about a pod from the API server. It returns an error if the pod is unreadable; Facts.NotAsked has
// other errors.
func Read(ctx context.Context, in *cluster.Cluster, namespace, name string) (*Facts, error) {
	r := reader{in}
	pod, err := r.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, r.notFound(ctx, namespace, name)
	}
	if err != nil {
		return nil, r.Explain("read pod/"+name, err)
	}
	f := &Facts{Now: time.Now(), Pod: pod}
	if f.Events, err = r.events(ctx, pod); err != nil {
		r.missed(f, "read events of the pod", err)
	}
	if !f.injected() {
		r.readInjection(ctx, f)
	}
	if !podspec.Ended(f.Pod) {
		r.readServices(ctx, f)
	}
	return f, nil
}

// missed records an object that could not be read.
func (r reader) missed(f *Facts, doing string, err error) {
	f.NotAsked = append(f.NotAsked, r.Explain(doing, err).Error())
}

// events returns the events of a pod, the newest first.
func (r reader) events(ctx context.Context, pod *corev1.Pod) ([]Event, error) {
	of := fields.SelectorFromSet(fields.Set{"involvedObject.uid": string(pod.UID)})
	list, err := r.Client.CoreV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{FieldSelector: of.String()})
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller explains it
	}
	all := make([]Event, 0, len(list.Items))
	for i := range list.Items {
		e := &list.Items[i]
		all = append(all, Event{
			Reason: e.Reason, Note: e.Message, Part: partOf(e.InvolvedObject.FieldPath), At: events.LastSeen(e),
		})
	}
	slices.SortStableFunc(all, func(a, b Event) int { return b.At.Compare(a.At) })
	return all, nil
}

// readInjection reads the objects that decide about injection: the namespace, the webhooks, and the pod template of the
// pod's owner.
func (r reader) readInjection(ctx context.Context, f *Facts) {
	var err error
	if f.Namespace, err = r.Client.CoreV1().Namespaces().Get(ctx, f.Pod.Namespace, metav1.GetOptions{}); err != nil {
		f.Namespace = nil
		r.missed(f, "read namespace "+f.Pod.Namespace, err)
	}
	list, err := r.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		r.missed(f, "read webhooks", err)
	} else {
		var installed bool
		f.Injection, installed = webhook.Installed(list.Items)
		f.NoWebhook = !installed
	}
	owner := metav1.GetControllerOf(f.Pod)
	if owner == nil {
		return
	}
	if f.Owner, f.Template, err = r.template(ctx, f.Pod.Namespace, owner); err != nil {
		r.missed(f, "read "+f.Owner+", which owns the pod", err)
	}
}

// template returns the pod template of an owner, nil for an unknown kind, and the name of the object with the template.
func (r reader) template(
	ctx context.Context, namespace string, o *metav1.OwnerReference,
) (string, *corev1.PodTemplateSpec, error) {
	apps, options := r.Client.AppsV1(), metav1.GetOptions{}
	var template *corev1.PodTemplateSpec
	var err error
	switch o.Kind {
	case "ReplicaSet":
		var rs *appsv1.ReplicaSet
		if rs, err = apps.ReplicaSets(namespace).Get(ctx, o.Name, options); err == nil {
			if d := metav1.GetControllerOf(rs); d != nil && d.Kind == "Deployment" {
				return r.template(ctx, namespace, d)
			}
			template = &rs.Spec.Template
		}
	case "Deployment":
		var d *appsv1.Deployment
		if d, err = apps.Deployments(namespace).Get(ctx, o.Name, options); err == nil {
			template = &d.Spec.Template
		}
	case "StatefulSet":
		var s *appsv1.StatefulSet
		if s, err = apps.StatefulSets(namespace).Get(ctx, o.Name, options); err == nil {
			template = &s.Spec.Template
		}
	case "DaemonSet":
		var d *appsv1.DaemonSet
		if d, err = apps.DaemonSets(namespace).Get(ctx, o.Name, options); err == nil {
			template = &d.Spec.Template
		}
	}
	return o.Kind + " " + o.Name, template, err //nolint:wrapcheck // the caller explains it
}

func (r reader) readServices(ctx context.Context, f *Facts) {
	services, err := r.Client.CoreV1().Services(f.Pod.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		f.Unread = true
		r.missed(f, "read Services of the namespace", err)
		return
	}
	slices, err := r.Client.DiscoveryV1().EndpointSlices(f.Pod.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		f.Unread = true
		r.missed(f, "read EndpointSlices of the namespace", err)
		return
	}
	f.Services, f.Slices = services.Items, slices.Items
}

// notFound returns the error for an unknown pod, with a suggestion, or why the pod could not be created.
func (r reader) notFound(ctx context.Context, namespace, name string) error {
	text := fmt.Sprintf("pod %q not found in namespace %s", name, namespace)
	pods, err := r.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: maxNames})
	if err != nil {
		return fmt.Errorf("%s (%w)", text, r.Explain("list pods of the namespace", err))
	}
	names := make([]string, len(pods.Items))
	for i := range pods.Items {
		names[i] = pods.Items[i].Name
	}
	if why := r.notMade(ctx, namespace, name); why != "" {
		return fmt.Errorf("%s: %s", text, why)
	}
	if near := nearest(name, names); near != "" {
		return fmt.Errorf("%s%s", text, near)
	}
	if elsewhere := r.elsewhere(ctx, name); elsewhere != "" {
		return fmt.Errorf("%s: found in %s: set -n", text, elsewhere)
	}
	return fmt.Errorf("%s", text)
}

// nearest returns a suggestion to append to the error: the pods of a workload with this name, else the most similar
// name.
func nearest(name string, names []string) string {
	of := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !strings.HasPrefix(n, name+"-") })
	if len(of) > 0 {
		slices.Sort(of)
		return ": there is " + mesh.Few(of)
	}
	return mesh.DidYouMean(name, names)
}

// notMade returns why a pod with this name or prefix could not be created, "" if unknown.
func (r reader) notMade(ctx context.Context, namespace, name string) string {
	failed := fields.SelectorFromSet(fields.Set{"reason": "FailedCreate"})
	list, err := r.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: failed.String(), Limit: maxNames,
	})
	if err != nil {
		return "" // only a hint: ignore errors
	}
	var last *corev1.Event
	for i := range list.Items {
		e := &list.Items[i]
		owner := e.InvolvedObject.Name
		if (owner == name || strings.HasPrefix(name, owner+"-") || strings.HasPrefix(owner, name+"-")) && (last == nil || events.LastSeen(e).After(events.LastSeen(last))) {
			last = e
		}
	}
	if last == nil {
		return ""
	}
	return fmt.Sprintf("%s %s could not create pods at %s: %s", last.InvolvedObject.Kind, last.InvolvedObject.Name, clock(events.LastSeen(last)), last.Message)
}

// elsewhere returns the namespaces with a pod of this name, "" without any or without the right to list pods.
func (r reader) elsewhere(ctx context.Context, name string) string {
	one := fields.OneTermEqualSelector(metav1.ObjectNameField, name)
	list, err := r.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: one.String(), Limit: maxNames,
	})
	if err != nil || len(list.Items) == 0 {
		return ""
	}
	namespaces := make([]string, len(list.Items))
	for i := range list.Items {
		namespaces[i] = list.Items[i].Namespace
	}
	return "namespace " + mesh.Few(namespaces)
}

// webhookNamespace returns the namespace as input of the webhook. If it was unreadable, only the name is set.
func (f *Facts) webhookNamespace() *webhook.Namespace {
	if f.Namespace == nil {
		return &webhook.Namespace{Name: f.Pod.Namespace}
	}
	return &webhook.Namespace{Name: f.Namespace.Name, Labels: f.Namespace.Labels, Annotations: f.Namespace.Annotations}
}
