package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/features"
	featurestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/kubernetes"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/leader"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/test/chart"
	"github.com/sonde-mesh/sonde/test/must"
)

// account is the chart's service account.
const account = "sonde-cp"

// rights is a right of a role of the chart, with the role.
type rights struct {
	role  string
	rules []rbacv1.PolicyRule
}

// installAccounts creates the service accounts of the chart.
func installAccounts(t *testing.T, client kubernetes.Interface, manifests []chart.Manifest) {
	t.Helper()
	for _, m := range manifests {
		if m.Kind != "ServiceAccount" {
			continue
		}
		var o corev1.ServiceAccount
		if err := m.Decode(&o); err != nil {
			t.Fatal(err)
		}
		_, err := client.CoreV1().ServiceAccounts(o.Namespace).Create(t.Context(), &o, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
}

// installPolicy creates the policies that limit the chart's rights.
func installPolicy(t *testing.T, manifests []chart.Manifest) {
	t.Helper()
	remove, err := cluster.InstallPolicies(t.Context(), manifests)
	removeAtEnd(t, remove)
	if err != nil {
		t.Fatal(err)
	}
}

func removeAtEnd(t testing.TB, remove func(context.Context) error) {
	t.Helper()
	t.Cleanup(func() {
		if err := remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// installRights creates the missing roles of the chart, and returns the control plane's rights.
func installRights(t *testing.T, client kubernetes.Interface, manifests []chart.Manifest) []rights {
	t.Helper()
	roles := client.RbacV1()
	all := make([]rights, 0, 2)
	for _, m := range manifests {
		var err error
		decode := func(into any) {
			if err := m.Decode(into); err != nil {
				t.Fatal(err)
			}
		}
		switch m.Kind {
		case "ClusterRole":
			var o rbacv1.ClusterRole
			decode(&o)
			if o.Name == account {
				all = append(all, rights{`ClusterRole "` + o.Name + `"`, o.Rules})
			}
			_, err = roles.ClusterRoles().Create(t.Context(), &o, metav1.CreateOptions{})
		case "ClusterRoleBinding":
			var o rbacv1.ClusterRoleBinding
			decode(&o)
			_, err = roles.ClusterRoleBindings().Create(t.Context(), &o, metav1.CreateOptions{})
		case "Role":
			var o rbacv1.Role
			decode(&o)
			all = append(all, rights{`Role "` + o.Name + `"`, o.Rules})
			_, err = roles.Roles(o.Namespace).Create(t.Context(), &o, metav1.CreateOptions{})
		case "RoleBinding":
			var o rbacv1.RoleBinding
			decode(&o)
			_, err = roles.RoleBindings(o.Namespace).Create(t.Context(), &o, metav1.CreateOptions{})
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	return all
}

// awaitRight waits until the API server, which reads roles a moment later, allows or no longer allows a request of a
// service account.
func awaitRight(t *testing.T, client kubernetes.Interface, namespace, name string, right authorizationv1.ResourceAttributes, want bool) {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:serviceaccount:" + namespace + ":" + name, ResourceAttributes: &right,
	}}
	must.Poll(t, "the rights of "+name, func(ctx context.Context) error {
		is, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err == nil && is.Status.Allowed != want {
			err = fmt.Errorf("%s %s: allowed: %t, want %t", right.Verb, right.Resource, is.Status.Allowed, want)
		}
		return err
	})
}

// installWebhooks creates the chart's webhooks, which call the control plane by its address.
func installWebhooks(t testing.TB, manifests []chart.Manifest, p *plane) {
	t.Helper()
	remove, err := cluster.InstallWebhooks(t.Context(), manifests, p.webhook)
	removeAtEnd(t, remove)
	if err != nil {
		t.Fatal(err)
	}
}

// The control plane runs with exactly the rights of the chart, and uses each of them.
func TestRightsOfTheChart(t *testing.T) {
	// Watches stream their initial list if the API server supports that; before 1.34, they need list
	// requests.
	featurestesting.SetFeatureDuringTest(t, features.WatchListClient, false)
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, systemNamespace, nil)
	before, err := cluster.Requests(user) // requests of other tests
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := chart.Render(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	installAccounts(t, client, manifests)
	granted := installRights(t, client, manifests)
	installPolicy(t, manifests)
	if err := errors.Join(
		client.CoreV1().Secrets(systemNamespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}),
		client.CoreV1().ConfigMaps(systemNamespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}),
		client.CoordinationV1().Leases(systemNamespace).Delete(t.Context(), leader.LeaseName, metav1.DeleteOptions{}),
	); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	token, err := client.CoreV1().ServiceAccounts(systemNamespace).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := cluster.WriteKubeconfig(kubeconfig, cluster.Config.Host, token.Status.Token); err != nil {
		t.Fatal(err)
	}
	namespace(t, client, "rights", nil)
	makeBlocked(t, client, "rights")
	t.Cleanup(func() { noneForbidden(t, len(before)) }) // after the control plane has ended
	p := startPlane(t, "rights", func(o *controlplane.Options) {
		o.Kubernetes.Kubeconfig, o.Kubernetes.WebhookConfiguration = kubeconfig, configurationName
	})
	installWebhooks(t, manifests, p)
	makeWarned(t, client, "rights", "one", "two")
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	callPlane(t, client, p)
	apply(t, "rights", "restartbudgets", restartBudget("one", "{selector: {}, maxUnavailable: 1}"))
	grantAndRefund(t, client, p, "rights")
	accepted(t, sondePath("rights", "restartbudgets")+"/one", "True", "Accepted", `"matched":1`)

	must.Poll(t, "the retry of a failed webhook call", func(ctx context.Context) error {
		set, err := client.AppsV1().ReplicaSets("rights").Get(ctx, "blocked", metav1.GetOptions{})
		if err == nil && set.Annotations["sonde.dev/retry"] == "" {
			err = fmt.Errorf("annotations %q", set.Annotations)
		}
		return err
	})
	must.Poll(t, "each right to be used", func(context.Context) error { return unused(granted, len(before)) })
}

// noneForbidden reports forbidden requests of the control plane, except for the first ones, whose
// number is after.
func noneForbidden(t *testing.T, after int) {
	all, err := cluster.Requests(user)
	if err != nil {
		t.Error(err)
	}
	for _, r := range all[min(after, len(all)):] {
		if !r.Allowed {
			t.Errorf("the chart does not allow a request of the control plane: %s", r)
		}
	}
}

const user = "system:serviceaccount:" + systemNamespace + ":" + account

// unused returns the rights that no request has used, except for the first requests, whose number
// is after.
func unused(granted []rights, after int) error {
	all, err := cluster.Requests(user)
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for _, r := range all[min(after, len(all)):] {
		used[strings.Join([]string{r.Role, r.Verb, r.Group, r.Resource}, " ")] = r.Allowed
	}
	var missing []string
	for _, g := range granted {
		for _, rule := range g.rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					if right := strings.Join([]string{g.role, verb, rule.APIGroups[0], resource}, " "); !used[right] {
						missing = append(missing, right)
					}
				}
			}
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("nothing uses %s", strings.Join(slices.Compact(slices.Sorted(slices.Values(missing))), ", "))
	}
	return nil
}

const unreachable = `Internal error occurred: failed calling webhook "namespace.inject.sonde.dev": connection refused`

// makeBlocked creates workloads and events as they are after failed webhook calls.
func makeBlocked(t *testing.T, client kubernetes.Interface, namespace string) {
	t.Helper()
	path := "/apis/apps/v1/namespaces/" + namespace + "/replicasets"
	const set = `{"metadata": {"name": "blocked"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "app", "image": "app"}]}}}}`
	if _, err := cluster.Do(t.Context(), http.MethodPost, path, "application/json", set); err != nil {
		t.Fatal(err)
	}
	condition := fmt.Sprintf(`{"status": {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": %q}]}}`, unreachable)
	if _, err := cluster.Do(t.Context(), http.MethodPatch, path+"/blocked/status", "application/merge-patch+json", condition); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"StatefulSet", "DaemonSet", "Job"} { // deleted meanwhile
		_, err := client.CoreV1().Events(namespace).Create(t.Context(), &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: strings.ToLower(kind)}, Reason: "FailedCreate", LastTimestamp: metav1.Now(), Message: unreachable,
			InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: namespace, Name: "blocked"},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// makeWarned creates pods of one ReplicaSet, with a warning each.
func makeWarned(t *testing.T, client kubernetes.Interface, namespace string, names ...string) {
	t.Helper()
	for _, name := range names {
		pod := podOf(namespace, name, func(p *corev1.Pod) {
			p.Labels = map[string]string{mesh.LabelMesh: "default"}
			p.Annotations = map[string]string{mesh.AnnotationInjectionWarnings: "a warning"}
			p.Spec.Volumes = []corev1.Volume{{Name: mesh.VolumeIdentity}}
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "blocked", UID: "u-1", Controller: new(true)}}
		})
		if _, err := client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const dataplane = `{apiVersion: sonde.dev/v1alpha1, kind: Dataplane, metadata: {name: vm}, spec: {networking: {address: 10.0.0.1, inbound: [{port: 80, servicePort: 8080, tags: {kuma.io/service: web}}]}}}`
	must.Poll(t, "the Dataplane to be admitted", func(ctx context.Context) error { // once the webhook has its CA
		_, err := cluster.Do(ctx, http.MethodPost, sondePath(namespace, "dataplanes"), "application/yaml", dataplane)
		return err
	})
}

// callPlane calls the control plane as an agent with a wrong token, and rotates a CA, also with a token of a service
// account.
func callPlane(t *testing.T, client kubernetes.Interface, p *plane) {
	t.Helper()
	pod, err := client.CoreV1().Pods("rights").Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The control plane has a token reviewed only if it could be the token of a known pod.
	forged := podToken(t, client, pod, mesh.TokenAudience)
	forged = forged[:strings.LastIndexByte(forged, '.')+1] + "c2lnbmF0dXJl"
	agent := agentv1.NewAgentServiceClient(p.dial(t, client, p.agents))
	must.Poll(t, "the API server to refuse a token", func(ctx context.Context) error {
		_, err := agent.Join(ctx, &agentv1.JoinRequest{Mesh: "default", Name: "one.rights", Token: forged})
		if status.Code(err) != codes.Unauthenticated {
			return fmt.Errorf("Join() = %w", err)
		}
		return nil
	})
	admin, ctx := p.adminClient(t, client)
	must.Poll(t, "a rotation to start", func(context.Context) error {
		_, err := admin.RotateCA(ctx, &adminv1.RotateCARequest{Mesh: "default"})
		return err
	})
	token := accountToken(t, client, systemNamespace, "sondectl-admin", mesh.AdminAudience)
	if _, err := admin.RotateCA(withToken(t.Context(), token), &adminv1.RotateCARequest{Mesh: "default"}); err != nil {
		t.Errorf("RotateCA() with a token of sondectl-admin = %v", err)
	}
}
