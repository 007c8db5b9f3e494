//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/sonde-mesh/sonde/controller/definitions"
	"github.com/sonde-mesh/sonde/test/harness"
)

var definitionsResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// chartOf is a chart, and the matching tag of the image.
type chartOf struct{ path, tag string }

// release is the Helm release. The test replaces it, and its end restores it.
type release struct {
	t             *testing.T
	now, previous chartOf
	// values is a file with the values of the original release.
	values string
	// set has more values.
	set []string
}

// newRelease returns the release of the cluster. If the previous release cannot be built, it skips the test.
func newRelease(t *testing.T, set ...string) *release {
	t.Helper()
	previous := os.Getenv("SONDE_E2E_PREVIOUS")
	if previous == "" {
		const why = "make e2e could not build the release before: this history does not have the commit in test/real/upgrade/previous"
		if os.Getenv("SONDE_TEST_PREVIOUS") == "required" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	r := currentRelease(t, set...)
	r.previous = chartOf{filepath.Join(previous, "chart"), "previous"}
	testbed(t, "load-image", filepath.Join(previous, "image.tar"))
	return r
}

// currentRelease is newRelease without building the previous release.
func currentRelease(t *testing.T, set ...string) *release {
	t.Helper()
	root := filepath.Dir(filepath.Dir(os.Getenv("SONDE_E2E_TESTBED")))
	r := &release{
		t: t, set: set, values: filepath.Join(t.TempDir(), "values.yaml"),
		now: chartOf{filepath.Join(root, "deploy", "chart"), "dev"},
	}
	values, err := r.tryHelm("get", "values", "sonde", "--output=json")
	if err == nil {
		err = os.WriteFile(r.values, []byte(values), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.set = nil
		if err := errors.Join(r.tryInstall(r.now), awaitReplaced(), awaitAdmission()); err != nil { // later tests need them
			t.Error(err)
		}
	})
	return r
}

// awaitReplaced waits until the old replicas have ended: a terminating replica still answers webhook calls, with its
// old configuration.
func awaitReplaced() error {
	return harness.Poll(context.Background(), "the end of the replicas before", func(ctx context.Context) error {
		list, err := cluster.client.CoreV1().Pods(systemNamespace).List(ctx, metav1.ListOptions{LabelSelector: controlPlaneLabel})
		if err == nil && len(list.Items) != replicas {
			err = fmt.Errorf("%d replicas, want %d", len(list.Items), replicas)
		}
		return err
	})
}

// tryHelm runs a Helm command in the namespace of the release, and returns its output.
func (r *release) tryHelm(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Getenv("SONDE_E2E_HELM"), append([]string{"--namespace=" + systemNamespace}, args...)...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("helm %s (SONDE_E2E_HELM is the program): %w: %s", strings.Join(args, " "), err, &said)
	}
	return string(out), nil
}

func (r *release) helm(args ...string) {
	r.t.Helper()
	if _, err := r.tryHelm(args...); err != nil {
		r.t.Fatal(err)
	}
}

// tryInstall installs a chart, or upgrades or downgrades to it.
func (r *release) tryInstall(c chartOf) error {
	args := []string{"upgrade", "--install", "sonde", c.path, "--create-namespace", "--wait", "--timeout=3m", "--reset-values", "--values=" + r.values, "--set=image.tag=" + c.tag}
	_, err := r.tryHelm(append(args, r.set...)...)
	return err
}

func (r *release) install(c chartOf) {
	r.t.Helper()
	if err := r.tryInstall(c); err != nil {
		r.t.Fatal(err)
	}
	(&namespace{t: r.t, name: systemNamespace}).waitReplicas()
	r.hookHasEnded()
}

// installAnew is install without an existing release: injection waits until the API server trusts the webhook.
func (r *release) installAnew(c chartOf) {
	r.t.Helper()
	r.install(c)
	if err := awaitAdmission(); err != nil {
		r.t.Fatal(err)
	}
}

// watchAdmission repeatedly checks whether pods would be injected, until stop is called. One call in a hundred may
// fail: an API server does not retry a request that it writes while the webhook closes the connection; controllers
// do.
func watchAdmission(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var failed []error
	asked, done := 0, make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(200 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
			if err := admit(ctx, newPod("admitted", cluster.nodes[0])); err != nil && ctx.Err() == nil {
				failed = append(failed, fmt.Errorf("%s: %w", time.Now().Format(time.TimeOnly), err))
			}
			asked++
		}
	}()
	return func() {
		cancel()
		<-done
		t.Logf("of %d pods that would be made while the control plane was replaced %d were refused: %v", asked, len(failed), errors.Join(failed...))
		if len(failed) > asked/100 {
			t.Error("more than one call in a hundred failed")
		}
	}
}

// hookHasEnded fails the test if the rights of the hook still exist.
func (r *release) hookHasEnded() {
	r.t.Helper()
	const hook = "sonde-crds"
	ctx := context.WithoutCancel(r.t.Context())
	_, account := cluster.client.CoreV1().ServiceAccounts(systemNamespace).Get(ctx, hook, metav1.GetOptions{})
	_, role := cluster.client.RbacV1().ClusterRoles().Get(ctx, hook, metav1.GetOptions{})
	_, binding := cluster.client.RbacV1().ClusterRoleBindings().Get(ctx, hook, metav1.GetOptions{})
	_, job := cluster.client.BatchV1().Jobs(systemNamespace).Get(ctx, hook, metav1.GetOptions{})
	for what, err := range map[string]error{"service account": account, "role": role, "binding": binding, "Job": job} {
		if !apierrors.IsNotFound(err) {
			r.t.Errorf("the %s of the hook still exists: %v", what, err)
		}
	}
}

// resources returns a client of a kind of objects.
func resources(t *testing.T, kind schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	t.Helper()
	client, err := newClient(func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	return client.Resource(kind)
}

// checkBudget fails the test unless a RestartBudget exists.
func (n *namespace) checkBudget(when, name string) {
	n.t.Helper()
	kind := schema.GroupVersionResource{Group: "sonde.dev", Version: "v1alpha1", Resource: "restartbudgets"}
	if _, err := resources(n.t, kind).Namespace(n.name).Get(n.t.Context(), name, metav1.GetOptions{}); err != nil {
		n.t.Errorf("%s: the operator's object: %v", when, err)
	}
}

// definitions returns the version that wrote each of our CustomResourceDefinitions, by name; "" means unknown.
func (r *release) definitions() map[string]string {
	r.t.Helper()
	list, err := resources(r.t, definitionsResource).List(r.t.Context(), metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	all := map[string]string{}
	for i := range list.Items {
		if o := &list.Items[i]; strings.HasSuffix(o.GetName(), ".sonde.dev") {
			all[o.GetName()] = o.GetAnnotations()[definitions.AnnotationVersion]
		}
	}
	return all
}

// removeAll uninstalls, and deletes what is left, as docs/guides/uninstall.md says: the definitions with all their
// objects, and the namespace.
func (r *release) removeAll() {
	r.t.Helper()
	r.helm("uninstall", "sonde", "--wait")
	if err := cluster.client.CoreV1().Namespaces().Delete(r.t.Context(), systemNamespace, metav1.DeleteOptions{}); err != nil {
		r.t.Fatal(err)
	}
	client := resources(r.t, definitionsResource)
	for name := range r.definitions() {
		if err := client.Delete(r.t.Context(), name, metav1.DeleteOptions{}); err != nil {
			r.t.Fatal(err)
		}
	}
	wait(r.t, "the end of the definitions and the namespace", func() error {
		if left := r.definitions(); len(left) > 0 {
			return fmt.Errorf("there are %v", left)
		}
		_, err := cluster.client.CoreV1().Namespaces().Get(r.t.Context(), systemNamespace, metav1.GetOptions{})
		if err == nil {
			return errors.New("the namespace still exists")
		}
		if !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	})
}

// checkDefinitions fails the test unless all definitions have a version, or, without applied, none
// has.
func (r *release) checkDefinitions(when string, applied bool) {
	r.t.Helper()
	all := r.definitions()
	if len(all) < 5 {
		r.t.Errorf("%s: only the definitions %v exist", when, all)
	}
	for name, version := range all {
		if (version != "") != applied {
			r.t.Errorf("%s: %s was written by version %q, want a version: %t", when, name, version, applied)
		}
	}
}

// left returns the objects in the namespace of the control plane, as kind/name.
func (r *release) left() []string {
	r.t.Helper()
	var all []string
	for _, kind := range []schema.GroupVersionResource{
		{Version: "v1", Resource: "secrets"}, {Version: "v1", Resource: "configmaps"}, {Version: "v1", Resource: "services"}, {Version: "v1", Resource: "serviceaccounts"},
		{Group: "apps", Version: "v1", Resource: "deployments"}, {Group: "batch", Version: "v1", Resource: "jobs"},
		{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, {Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"}, {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
	} {
		list, err := resources(r.t, kind).Namespace(systemNamespace).List(r.t.Context(), metav1.ListOptions{})
		if err != nil {
			r.t.Fatal(err)
		}
		for i := range list.Items {
			all = append(all, kind.Resource+"/"+list.Items[i].GetName())
		}
	}
	// Kubernetes creates these in each namespace.
	all = slices.DeleteFunc(all, func(name string) bool {
		return name == "configmaps/kube-root-ca.crt" || name == "serviceaccounts/default"
	})
	slices.Sort(all)
	return all
}

// clusterWide returns our cluster-scoped objects, except for definitions and their objects, as kind/name.
func (r *release) clusterWide() []string {
	r.t.Helper()
	var all []string
	for _, kind := range []schema.GroupVersionResource{
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}, {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
		{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"}, {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"},
		{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"}, {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"},
	} {
		list, err := resources(r.t, kind).List(r.t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=sonde"})
		if err != nil {
			r.t.Fatal(err)
		}
		for i := range list.Items {
			all = append(all, kind.Resource+"/"+list.Items[i].GetName())
		}
	}
	return all
}

// revision is the newest revision of the release.
func (r *release) revision() int {
	r.t.Helper()
	text, err := r.tryHelm("history", "sonde", "--output=json", "--max=1")
	if err != nil {
		r.t.Fatal(err)
	}
	var list []struct{ Revision int }
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list) == 0 {
		r.t.Fatalf("helm history prints %q: %v", text, err)
	}
	return list[len(list)-1].Revision
}
