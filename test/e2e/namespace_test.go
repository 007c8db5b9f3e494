//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"

	"github.com/sonde-mesh/sonde/restartbudget"
)

// namespace belongs to one test, and ends with it.
type namespace struct {
	t    *testing.T
	name string
	// injected means that its pods get a sidecar.
	injected bool
	// perPort means that their probes are in the per-port mode.
	perPort bool
	// ends are called after the namespace has been deleted.
	ends []func(ctx context.Context)
}

// Labels of namespaces.
var (
	injected = map[string]string{"kuma.io/sidecar-injection": "enabled"}
	perPort  = map[string]string{"kuma.io/sidecar-injection": "enabled", "sonde.dev/virtual-probes-mode": "per-port"}
	outside  = map[string]string{}
)

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// itself stands for the name of the namespace in its labels.
const itself = "$(NAME)"

func replaced(labels map[string]string, name string) map[string]string {
	r := map[string]string{}
	for key, value := range labels {
		r[key] = strings.ReplaceAll(value, itself, name)
	}
	return r
}

// newName returns a name with the test's name as prefix.
func newName(t *testing.T) string {
	prefix := notInNames.ReplaceAllString(strings.ToLower(strings.TrimPrefix(t.Name(), "Test")), "-")
	return prefix[:min(len(prefix), 40)] + "-" + rand.String(5)
}

// newNamespace creates a namespace with the test's name as prefix. If the test fails, its log describes the pods.
func newNamespace(t *testing.T, labels map[string]string) *namespace {
	t.Helper()
	n := &namespace{
		t: t, name: newName(t), injected: labels["kuma.io/sidecar-injection"] == "enabled",
		perPort: labels["sonde.dev/virtual-probes-mode"] == "per-port",
	}
	_, err := cluster.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: replaced(labels, n.name)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if t.Failed() {
			t.Log(n.describe(ctx))
		}
		if err := cluster.client.CoreV1().Namespaces().Delete(ctx, n.name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete namespace %s: %v", n.name, err)
		}
		for _, end := range n.ends {
			end(ctx)
		}
	})
	n.wait("its service account", func() error {
		_, err := cluster.client.CoreV1().ServiceAccounts(n.name).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	return n
}

// wait polls until check returns nil.
func (n *namespace) wait(what string, check func() error) {
	n.t.Helper()
	wait(n.t, n.name+": "+what, check)
}

// patience only ends tests that can never pass: a slow machine makes a test late, not wrong. The longest wait is for
// the end of a grant.
const patience = restartbudget.InProgress + 2*time.Minute

// wait polls until check returns nil, and fails the test after patience.
func wait(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.After(patience)
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("waited %s for %s: %v", patience, what, err)
		case <-ticker.C:
		}
	}
}

// create creates objects from YAML documents or Kubernetes' types. It returns the warnings.
func (n *namespace) create(objects ...any) []string {
	n.t.Helper()
	warnings, err := n.createAll(objects, func(create func() error) (err error) {
		wait(n.t, "a webhook that answers", func() error {
			if err = create(); isLateWebhook(err) {
				return err
			}
			return nil
		})
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return warnings
}

// isLateWebhook returns whether a webhook call timed out, which happens on a busy machine. Controllers retry, and so
// do the tests.
func isLateWebhook(err error) bool {
	return apierrors.IsInternalError(err) && strings.Contains(err.Error(), "failed to call webhook") && strings.Contains(err.Error(), "context deadline exceeded")
}

// tryCreate is create for objects that may be rejected.
func (n *namespace) tryCreate(objects ...any) (warnings []string, err error) {
	n.t.Helper()
	return n.createAll(objects, func(create func() error) error { return create() })
}

// createAll creates objects, each by calling try.
func (n *namespace) createAll(objects []any, try func(create func() error) error) (warnings []string, err error) {
	n.t.Helper()
	client, err := newClient(func(text string) { warnings = append(warnings, text) })
	if err != nil {
		n.t.Fatal(err)
	}
	for _, o := range objects {
		documents, err := unstructuredOf(o)
		if err != nil {
			n.t.Fatal(err)
		}
		for _, u := range documents {
			if err := try(func() error { return n.createOne(client, u) }); err != nil {
				return warnings, err
			}
		}
	}
	return warnings, nil
}

// createOne creates an object. It deletes a cluster-scoped object after the namespace.
func (n *namespace) createOne(client dynamic.Interface, u *unstructured.Unstructured) error {
	n.t.Helper()
	gvk := u.GroupVersionKind()
	mapping, err := cluster.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		n.t.Fatal(err)
	}
	options := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	if mapping.Scope.Name() == "namespace" {
		_, err = client.Resource(mapping.Resource).Namespace(n.name).Create(n.t.Context(), u, options)
		return err
	}
	resource := client.Resource(mapping.Resource)
	if _, err = resource.Create(n.t.Context(), u, options); err != nil {
		return err
	}
	n.ends = append(n.ends, func(ctx context.Context) {
		wait(n.t, "the end of "+u.GetKind()+" "+u.GetName(), func() error { // a Mesh in use cannot be deleted
			if err := resource.Delete(ctx, u.GetName(), metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
				return err
			}
			return nil
		})
	})
	return nil
}

// unstructuredOf returns the YAML documents of a string, or the one object.
func unstructuredOf(o any) (list []*unstructured.Unstructured, err error) {
	text, ok := o.(string)
	if !ok {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		delete(content, "status")
		return []*unstructured.Unstructured{{Object: content}}, err
	}
	for decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096); ; {
		u := &unstructured.Unstructured{}
		if err := decoder.Decode(u); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, err
		}
		list = append(list, u)
	}
}

// describe returns the pods with their events and the ends of their logs, to diagnose a failure.
func (n *namespace) describe(ctx context.Context) string {
	var text strings.Builder
	fmt.Fprintf(&text, "=== namespace %s\n", n.name)
	pods, err := cluster.client.CoreV1().Pods(n.name).List(ctx, metav1.ListOptions{Limit: 10})
	if err != nil {
		return err.Error()
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		fmt.Fprintf(&text, "--- pod %s on %s, %s, %s %s %s\n", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.PodIP, p.Status.Reason, p.Status.Message)
		for _, s := range statuses(p) {
			fmt.Fprintf(&text, "  %s: ready %t, restarts %d, %s; before: %s\n", s.Name, s.Ready, s.RestartCount, stateOf(s.State), stateOf(s.LastTerminationState))
			if s.State.Terminated != nil && s.State.Terminated.ExitCode == 0 {
				continue
			}
			log, err := cluster.client.CoreV1().Pods(n.name).GetLogs(p.Name, &corev1.PodLogOptions{Container: s.Name, TailLines: new(int64(15))}).DoRaw(ctx)
			if err != nil {
				log = []byte(err.Error())
			}
			fmt.Fprintf(&text, "    %s\n", strings.ReplaceAll(strings.TrimSpace(string(log)), "\n", "\n    "))
		}
	}
	events, err := n.events(ctx)
	if err != nil {
		return err.Error()
	}
	for _, e := range events {
		if slices.Contains([]string{"Pulled", "Created", "Started", "Scheduled"}, e.Reason) {
			continue
		}
		fmt.Fprintf(&text, "  %s %s %s/%s: %s\n", e.LastTimestamp.Format(time.TimeOnly), e.Reason, e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Message)
	}
	return text.String()
}

func stateOf(s corev1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("ended %s %d %s", s.Terminated.Reason, s.Terminated.ExitCode, s.Terminated.Message)
	case s.Waiting != nil:
		return fmt.Sprintf("waiting %s %s", s.Waiting.Reason, s.Waiting.Message)
	}
	return "nothing"
}

// events returns the events of the namespace, the oldest first.
func (n *namespace) events(ctx context.Context) ([]corev1.Event, error) {
	list, err := cluster.client.CoreV1().Events(n.name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return list.Items, nil
}

// waitEvent waits for an event about an object whose message contains all the words.
func (n *namespace) waitEvent(object, reason string, words ...string) {
	n.t.Helper()
	n.wait("an event "+reason+" of "+object, func() error {
		events, err := n.events(n.t.Context())
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range events {
			if e.InvolvedObject.Name != object {
				continue
			}
			lacks := func(word string) bool { return !strings.Contains(e.Message, word) }
			if e.Reason == reason && !slices.ContainsFunc(words, lacks) {
				return nil
			}
			seen = append(seen, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("no event with %q; found:\n%s", words, strings.Join(seen, "\n"))
	})
}
