package kube

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/test/apiserver"
	"github.com/sonde-mesh/sonde/test/chart"
	"github.com/sonde-mesh/sonde/test/must"
)

// asAccount returns a cluster that sends requests as the control plane's service account, with all rights on the
// workloads: any refusal then comes from the policy.
func asAccount(t *testing.T, client kubernetes.Interface) *apiserver.Cluster {
	t.Helper()
	_, err := client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "too-much"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"apps", "batch"}, Resources: []string{"*"}, Verbs: []string{"*"}},
		{APIGroups: []string{""}, Resources: []string{"pods/status"}, Verbs: []string{"*"}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "too-much"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "too-much"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: systemNamespace}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, err := range []error{
			client.RbacV1().ClusterRoleBindings().Delete(context.Background(), "too-much", metav1.DeleteOptions{}),
			client.RbacV1().ClusterRoles().Delete(context.Background(), "too-much", metav1.DeleteOptions{}),
		} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	token, err := client.CoreV1().ServiceAccounts(systemNamespace).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(cluster.Config)
	config.BearerToken = token.Status.Token
	return &apiserver.Cluster{Config: config}
}

const (
	merge     = "application/merge-patch+json"
	jsonPatch = "application/json-patch+json"
	touch     = `{"metadata": {"annotations": {"sonde.dev/retry": "2026-01-01T00:00:00Z"}}}`
)

// The chart's policy allows the control plane to change one annotation of workloads, and does not restrict other
// users.
func TestRetryPolicy(t *testing.T) {
	client := newClient(t)
	namespace(t, client, systemNamespace, nil)
	namespace(t, client, "policy", nil)
	manifests, err := chart.Render(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	installAccounts(t, client, manifests)
	installPolicy(t, manifests)
	const template = `"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"restartPolicy": %q, "containers": [{"name": "one", "image": "a"}, {"name": "two", "image": "b"}]}}`
	apps := func(more string) string {
		return `{"metadata": {"name": "web", "labels": {"l": "1"}, "annotations": {"a": "1"}}, "spec": {"selector": {"matchLabels": {"a": "b"}}, ` + more + fmt.Sprintf(template, "Always") + `}}`
	}
	all := map[string]string{
		"/apis/apps/v1/namespaces/policy/replicasets":  apps(""),
		"/apis/apps/v1/namespaces/policy/statefulsets": apps(`"serviceName": "web", `),
		"/apis/apps/v1/namespaces/policy/daemonsets":   apps(""),
		"/apis/batch/v1/namespaces/policy/jobs": `{"metadata": {"name": "web", "labels": {"l": "1"}, "annotations": {"a": "1"}}, "spec": {"suspend": true, ` +
			fmt.Sprintf(template, "Never") + `}}`,
	}
	for path, object := range all {
		if _, err := cluster.Do(t.Context(), http.MethodPost, path, "application/json", object); err != nil {
			t.Fatal(err)
		}
	}
	cp := asAccount(t, client)
	const refused = "ValidatingAdmissionPolicy 'sonde-retry'"
	must.Poll(t, "the policy to be in force", func(ctx context.Context) error {
		for path := range all {
			if _, err := cp.Do(ctx, http.MethodPatch, path+"/web?dryRun=All", merge, `{"metadata": {"labels": {"x": "y"}}}`); err == nil || !strings.Contains(err.Error(), refused) {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
		return nil
	})
	for path, object := range all {
		t.Run(path, func(t *testing.T) {
			if _, err := cp.Do(t.Context(), http.MethodPatch, path+"/web", merge, touch); err != nil {
				t.Errorf("the retry is refused: %v", err)
			}
			testRefused(t, cp, path, object, refused)
			for _, patch := range []string{`{"metadata": {"labels": {"x": "y"}, "annotations": {"b": "2"}}}`, `{"metadata": {"finalizers": ["example.com/a"]}}`, `{"metadata": {"finalizers": null}}`} {
				if _, err := cluster.Do(t.Context(), http.MethodPatch, path+"/web", merge, patch); err != nil {
					t.Errorf("another's %s is refused: %v", patch, err)
				}
			}
			if _, err := cp.Do(t.Context(), http.MethodPatch, path+"/web", merge, `{"metadata": {"annotations": {"sonde.dev/retry": "2026-01-01T00:00:01Z"}}}`); err != nil {
				t.Errorf("the second retry is refused: %v", err)
			}
		})
	}
}

// testRefused sends changes that the control plane must not make.
func testRefused(t *testing.T, cp *apiserver.Cluster, path, object, want string) {
	t.Helper()
	const status = `{"status": {"conditions": [{"type": "X", "status": "True", "lastTransitionTime": null}]}}`
	type request struct{ method, path, contentType, body string }
	patch := func(body string) request { return request{http.MethodPatch, path + "/web", merge, body} }
	requests := map[string]request{
		"a label":                    patch(`{"metadata": {"labels": {"x": "y"}}}`),
		"a label changed":            patch(`{"metadata": {"labels": {"l": "2"}}}`),
		"no label":                   patch(`{"metadata": {"labels": null}}`),
		"an annotation":              patch(`{"metadata": {"annotations": {"x": "y"}}}`),
		"another, too":               patch(`{"metadata": {"annotations": {"sonde.dev/retry": "x", "x": "y"}}}`),
		"annotation changed":         patch(`{"metadata": {"annotations": {"a": "2"}}}`),
		"annotation removed":         patch(`{"metadata": {"annotations": {"a": null}}}`),
		"all annotations":            patch(`{"metadata": {"annotations": null}}`),
		"a long time":                patch(`{"metadata": {"annotations": {"sonde.dev/retry": "` + strings.Repeat("x", 65) + `"}}}`),
		"a finalizer":                patch(`{"metadata": {"finalizers": ["example.com/a"]}}`),
		"an owner":                   patch(`{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b"}]}}`),
		"the status":                 {http.MethodPatch, path + "/web/status", merge, status},
		"another object of its kind": {http.MethodPost, path, "application/json", strings.Replace(object, `"web"`, `"other"`, 1)},
		"deletion":                   {http.MethodDelete, path + "/web", "", ""},
		"the end of all":             {http.MethodDelete, path, "", ""},
	}
	if strings.HasSuffix(path, "jobs") { // their template is immutable
		requests["suspension"] = patch(`{"spec": {"suspend": false}}`)
		requests["with the retry"] = patch(`{"metadata": {"annotations": {"sonde.dev/retry": "x"}}, "spec": {"parallelism": 7}}`)
	} else {
		template := path + "/web"
		requests["the image"] = request{http.MethodPatch, template, jsonPatch, `[{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "evil"}]`}
		requests["a container"] = request{http.MethodPatch, template, jsonPatch, `[{"op": "add", "path": "/spec/template/spec/containers/-", "value": {"name": "c", "image": "c"}}]`}
		requests["the order"] = request{http.MethodPatch, template, jsonPatch, `[{"op": "move", "from": "/spec/template/spec/containers/0", "path": "/spec/template/spec/containers/1"}]`}
		requests["with the retry"] = patch(`{"metadata": {"annotations": {"sonde.dev/retry": "x"}}, "spec": {"template": {"spec": {"hostNetwork": true}}}}`)
	}
	if strings.HasSuffix(path, "replicasets") || strings.HasSuffix(path, "statefulsets") {
		requests["replicas"] = patch(`{"spec": {"replicas": 7}}`)
		requests["the scale"] = request{http.MethodPatch, path + "/web/scale", merge, `{"spec": {"replicas": 7}}`}
	}
	for name, r := range requests {
		t.Run(name, func(t *testing.T) {
			_, err := cp.Do(t.Context(), r.method, r.path+"?dryRun=All", r.contentType, r.body)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want a refusal by %s", err, want)
			}
		})
	}
}
