package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/test/apiserver"
	"github.com/sonde-mesh/sonde/test/chart"
	"github.com/sonde-mesh/sonde/test/must"
)

// Namespaces of TestAccounts besides the control plane's: the watchdog's, a WatchedCluster's, and an unrelated
// one.
const apart, listed, foreign = "apart", "listed", "foreign"

// principal is a service account.
type principal struct{ namespace, name string }

func (i principal) user() string { return "system:serviceaccount:" + i.namespace + ":" + i.name }

// The chart's accounts, and other accounts of a cluster.
var (
	ours = []principal{
		{systemNamespace, account}, {apart, "sonde-watchdog"}, {systemNamespace, "sonde-crds"}, {systemNamespace, "sondectl"}, {systemNamespace, "sondectl-admin"},
	}
	others = []principal{{systemNamespace, "default"}, {apart, "default"}, {foreign, "default"}}
)

// attempt is a request.
type attempt struct{ name, method, path, contentType, body, impersonate string }

// as returns a cluster that sends requests as an account.
func as(t *testing.T, client kubernetes.Interface, who principal) *apiserver.Cluster {
	t.Helper()
	token, err := client.CoreV1().ServiceAccounts(who.namespace).CreateToken(t.Context(), who.name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(cluster.Config)
	config.BearerToken = token.Status.Token
	return &apiserver.Cluster{Config: config}
}

// send sends a request of a cluster's user. An update uses the current resourceVersion.
func (a attempt) send(ctx context.Context, c *apiserver.Cluster, query string) error {
	config := rest.CopyConfig(c.Config)
	config.Impersonate.UserName = a.impersonate
	body := a.body
	if a.method == http.MethodPut {
		text, err := cluster.Do(ctx, http.MethodGet, a.path, "", "")
		if err != nil {
			return err
		}
		var is metav1.PartialObjectMetadata
		if err := json.Unmarshal([]byte(text), &is); err != nil {
			return err
		}
		body = strings.Replace(body, "metadata: {", `metadata: {resourceVersion: "`+is.ResourceVersion+`", `, 1)
	}
	_, err := (&apiserver.Cluster{Config: config}).Do(ctx, a.method, a.path+query, a.contentType, body)
	return err
}

// policies starts the API server's error about a policy of the chart.
const policies = "ValidatingAdmissionPolicy 'sonde-"

// isRefused reports whether an error is due to a missing right or a policy of the chart.
func isRefused(err error) bool {
	return err != nil && (strings.HasPrefix(err.Error(), "403 ") || strings.Contains(err.Error(), policies))
}

// TestAccounts has each account of the chart try to become another account, and to read and change objects that it
// does not need. An administrator may send each of these requests. No controller fills token Secrets here, so
// creating such a Secret already counts as success.
func TestAccounts(t *testing.T) {
	client := newClient(t)
	for _, name := range []string{systemNamespace, apart, listed, foreign} {
		namespace(t, client, name, nil)
	}
	flags := []string{
		"--set=watchdog.enabled=true", "--set=watchdog.gardener.enabled=true", "--set=watchdog.namespace=" + apart,
		"--set=watchdog.namespaces[0].name=" + listed, "--set=watchdog.namespaces[0].secrets={probe}",
	}
	manifests, err := chart.Render(t.Context(), flags...)
	if err != nil {
		t.Fatal(err)
	}
	hooks, err := chart.Hooks(t.Context(), flags...)
	if err != nil {
		t.Fatal(err)
	}
	installAccounts(t, client, append(hooks, manifests...))
	installRights(t, client, append(hooks, manifests...))
	installPolicy(t, manifests)
	makePrey(t)
	for _, who := range ours {
		t.Run(who.name, func(t *testing.T) {
			own := as(t, client, who)
			all := changes(who)
			for _, other := range append(ours, others...) {
				if other != who {
					all = append(all, thefts(who, other)...)
				}
			}
			awaitPolicies(t, own, who)
			for _, a := range all {
				query := "?dryRun=All"
				if a.method == http.MethodGet || a.impersonate != "" {
					query = ""
				}
				if err := a.send(t.Context(), cluster, query); err != nil {
					t.Errorf("%s: an administrator's is refused: %v", a.name, err)
				}
				if err := a.send(t.Context(), own, query); !isRefused(err) {
					t.Errorf("%s: %v, want a refusal", a.name, err)
				}
			}
			for _, a := range allowed[who.name] { // after the API server has read the role
				must.Poll(t, a.name, func(ctx context.Context) error { return a.send(ctx, own, "") })
			}
		})
	}
}

// awaitPolicies waits until an account's policies, and the rights that they limit, are in effect.
func awaitPolicies(t *testing.T, own *apiserver.Cluster, who principal) {
	t.Helper()
	needs := map[string][]attempt{
		account: {
			create("", leases(who.namespace), lease("stolen")),
			{method: http.MethodPatch, path: mutating + "/" + configurationName, contentType: merge, body: `{"metadata": {"labels": {"x": "y"}}}`},
		},
		"sonde-watchdog": {
			create("", leases(who.namespace), lease("stolen")),
			{method: http.MethodPatch, path: deployments(listed) + "/" + dependant, contentType: merge, body: `{"metadata": {"labels": {"x": "y"}}}`},
		},
	}
	for _, a := range needs[who.name] {
		must.Poll(t, "the policies of "+who.name, func(ctx context.Context) error {
			err := a.send(ctx, own, "?dryRun=All")
			if err != nil && strings.Contains(err.Error(), policies) {
				return nil
			}
			return fmt.Errorf("%s %s: %w", a.method, a.path, err)
		})
	}
}

// dependant is a Deployment that the watchdog may scale.
const dependant = "kube-controller-manager"

func core(namespace, resource string) string {
	return "/api/v1/namespaces/" + namespace + "/" + resource
}
func leases(namespace string) string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases"
}
func deployments(namespace string) string {
	return "/apis/apps/v1/namespaces/" + namespace + "/deployments"
}

func create(name, path, body string) attempt {
	return attempt{name: name, method: http.MethodPost, path: path, contentType: "application/yaml", body: body}
}

func lease(name string) string {
	return "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: " + name + "}}"
}

func secretOf(name, kind, annotations string) string {
	return "{apiVersion: v1, kind: Secret, metadata: {name: " + name + ", annotations: {" + annotations + "}}, type: " + kind + "}"
}

func tokenSecret(name string, of principal) string {
	return secretOf(name, "kubernetes.io/service-account-token", "kubernetes.io/service-account.name: "+of.name)
}

// webhookConfiguration returns a configuration with two webhooks, which the API server never calls.
func webhookConfiguration(name string) string {
	return "{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: " + name + "}, webhooks: [" + webhookOf("a") + ", " + webhookOf("b") + "]}"
}

func webhookOf(name string) string {
	return "{name: " + name + `.example.com, admissionReviewVersions: [v1], sideEffects: None, failurePolicy: Ignore, clientConfig: {service: {name: a, namespace: a, path: /a}},
		namespaceSelector: {matchLabels: {no: such}}, rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}], matchConditions: [{name: never, expression: "false"}]}`
}

const mutating = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"

// makePrey creates the objects that accounts try to read and change.
func makePrey(t *testing.T) {
	t.Helper()
	const template = "{metadata: {labels: {a: b}}, spec: {containers: [{name: app, image: app}]}}"
	deployment := "{apiVersion: apps/v1, kind: Deployment, metadata: {name: " + dependant + "}, spec: {selector: {matchLabels: {a: b}}, template: " + template + "}}"
	all := []attempt{create("", mutating, webhookConfiguration("other")), create("", mutating, webhookConfiguration(configurationName))}
	for _, n := range []string{systemNamespace, apart, listed, foreign} {
		all = append(all,
			create("", core(n, "secrets"), tokenSecret("kept", principal{n, "default"})), create("", core(n, "secrets"), secretOf("sh.helm.release.v1.sonde.v1", "helm.sh/release.v1", "")),
			create("", leases(n), lease("other")), create("", core(n, "configmaps"), "{apiVersion: v1, kind: ConfigMap, metadata: {name: other}}"),
			create("", core(n, "pods"), "{apiVersion: v1, kind: Pod, metadata: {name: prey}, spec: {containers: [{name: app, image: app}]}}"),
			create("", deployments(n), deployment),
		)
	}
	for i := range ours[:2] { // the accounts with a Lease
		all = append(all, create("", leases(ours[i].namespace), lease(ours[i].name)))
	}
	all = append(all, create("", core(listed, "secrets"), secretOf("probe", "Opaque", "")))
	for _, a := range all {
		if err := a.send(t.Context(), cluster, ""); err != nil && !strings.HasPrefix(err.Error(), "409 ") {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_, name, _ := strings.Cut(a.body, "{name: ")
			name, _, _ = strings.Cut(name, "}")
			name, _, _ = strings.Cut(name, ",")
			if _, err := cluster.Do(context.Background(), http.MethodDelete, a.path+"/"+name, "", ""); err != nil && !strings.HasPrefix(err.Error(), "404 ") {
				t.Error(err)
			}
		})
	}
}

// thefts returns requests by which an account could become another account.
func thefts(who, other principal) []attempt {
	n, as := other.namespace, " as "+other.user()
	secrets, account := core(n, "secrets"), core(n, "serviceaccounts")+"/"+other.name
	all := []attempt{
		{"annotate a token" + as, http.MethodPut, secrets + "/kept", "application/yaml", tokenSecret("kept", other), ""},
		{"patch a token" + as, http.MethodPatch, secrets + "/kept", merge, `{"metadata": {"annotations": {"kubernetes.io/service-account.name": "` + other.name + `"}}}`, ""},
		create("request a token"+as, account+"/token", "{apiVersion: authentication.k8s.io/v1, kind: TokenRequest}"),
		create("run a pod"+as, core(n, "pods"), "{apiVersion: v1, kind: Pod, metadata: {name: stolen}, spec: {serviceAccountName: "+other.name+", containers: [{name: app, image: app}]}}"),
		{"impersonate" + as, http.MethodPost, "/apis/authentication.k8s.io/v1/selfsubjectreviews", "application/yaml", "{apiVersion: authentication.k8s.io/v1, kind: SelfSubjectReview}", other.user()},
		{"patch the account" + as, http.MethodPatch, account, merge, `{"metadata": {"annotations": {"x": "y"}}}`, ""},
		create("bind a role"+as, "/apis/rbac.authorization.k8s.io/v1/namespaces/"+n+"/rolebindings", "{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: stolen}, "+
			"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}, subjects: [{kind: ServiceAccount, name: "+who.name+", namespace: "+who.namespace+"}]}"),
	}
	for _, name := range []string{"stolen", "sonde-leader", "sonde-watchdog-leader", "sonde-ca-stolen"} {
		all = append(all, create("make the token "+name+as, secrets, tokenSecret(name, other)))
	}
	return all
}

// changes returns reads and changes that an account does not need, but would have without the
// policies.
func changes(who principal) []attempt {
	const roles, admission = "/apis/rbac.authorization.k8s.io/v1/", "/apis/admissionregistration.k8s.io/v1/"
	patch := func(path, body string) attempt {
		return attempt{"patch " + path, http.MethodPatch, path, merge, body, ""}
	}
	const label = `{"metadata": {"labels": {"x": "y"}}}`
	all := []attempt{
		create("bind a cluster role", roles+"clusterrolebindings", "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: stolen}, "+
			"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}, subjects: [{kind: ServiceAccount, name: "+who.name+", namespace: "+who.namespace+"}]}"),
		patch(roles+"clusterroles/"+who.name, `{"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}`),
		patch(mutating+"/other", label), patch(mutating+"/"+configurationName, label), patch(mutating+"/"+configurationName, `{"webhooks": []}`),
	}
	for name, of := range map[string]string{
		"rules": `[{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}]`, "namespaceSelector": `{}`, "matchConditions": `[]`, "failurePolicy": `"Fail"`,
		"clientConfig": `{"url": "https://example.com"}`, "clientConfig/service/namespace": `"b"`, "objectSelector": `{"matchLabels": {"a": "b"}}`, "timeoutSeconds": `1`, "reinvocationPolicy": `"IfNeeded"`,
	} {
		all = append(all, attempt{"change " + name, http.MethodPatch, mutating + "/" + configurationName, jsonPatch, `[{"op": "replace", "path": "/webhooks/1/` + name + `", "value": ` + of + `}]`, ""})
	}
	all = append(all, attempt{"change the order of webhooks", http.MethodPatch, mutating + "/" + configurationName, jsonPatch, `[{"op": "move", "from": "/webhooks/1", "path": "/webhooks/0"}]`, ""})
	for _, policy := range []string{"sonde-retry", "sonde-liveness-held", "sonde-cp-own-objects", "sonde-watchdog-own-objects", "sonde-watchdog-dependants", "sonde-webhook-ca"} {
		all = append(all, patch(admission+"validatingadmissionpolicies/"+policy, `{"spec": {"failurePolicy": "Ignore"}}`), patch(admission+"validatingadmissionpolicybindings/"+policy, label),
			attempt{"delete " + policy, http.MethodDelete, admission + "validatingadmissionpolicybindings/" + policy, "", "", ""})
	}
	for _, n := range []string{systemNamespace, apart, listed, foreign} {
		all = append(all,
			create("make a lease in "+n, leases(n), lease("stolen")), attempt{"take a lease in " + n, http.MethodPut, leases(n) + "/other", "application/yaml", lease("other"), ""},
			attempt{"rewrite a release in " + n, http.MethodPut, core(n, "secrets") + "/sh.helm.release.v1.sonde.v1", "application/yaml", secretOf("sh.helm.release.v1.sonde.v1", "helm.sh/release.v1", "a: b"), ""},
			create("make a certificate of an own name in "+n, core(n, "secrets"), secretOf("sonde-ca-stolen", "example.com/other", "")), create("make a Secret in "+n, core(n, "secrets"), secretOf("stolen", "Opaque", "")),
			patch(core(n, "configmaps")+"/other", `{"data": {"a": "b"}}`), patch(core(n, "pods")+"/prey", label),
			patch(deployments(n)+"/"+dependant, `{"spec": {"template": {"spec": {"serviceAccountName": "default"}}}}`), patch(deployments(n)+"/"+dependant, label),
			patch(deployments(n)+"/"+dependant, `{"metadata": {"annotations": {"x": "y"}}}`),
			attempt{"delete a deployment in " + n, http.MethodDelete, deployments(n) + "/" + dependant, "", "", ""},
		)
		if who != ours[0] || n != systemNamespace { // SECURITY.md says that the control plane reads all Secrets of its namespace
			all = append(all, attempt{"list secrets in " + n, http.MethodGet, core(n, "secrets"), "", "", ""}, attempt{"read a secret in " + n, http.MethodGet, core(n, "secrets") + "/kept", "", "", ""})
		}
	}
	for _, other := range ours[:2] {
		if other != who {
			all = append(all, attempt{"take the lease of " + other.name, http.MethodPut, leases(other.namespace) + "/" + other.name, "application/yaml", lease(other.name), ""})
		}
	}
	return all
}

// allowed has the requests that accounts need, and a right that SECURITY.md lists although they do
// not need it.
var allowed = map[string][]attempt{
	account: {
		{"renew its lease", http.MethodPut, leases(systemNamespace) + "/" + account, "application/yaml", lease(account), ""},
		{"set the CA of a webhook", http.MethodPatch, mutating + "/" + configurationName, jsonPatch, `[{"op": "add", "path": "/webhooks/1/clientConfig/caBundle", "value": "Y2E="}]`, ""},
		{"remove the CA of a webhook", http.MethodPatch, mutating + "/" + configurationName, jsonPatch, `[{"op": "remove", "path": "/webhooks/1/clientConfig/caBundle"}]`, ""},
		{"read the secrets of its namespace", http.MethodGet, core(systemNamespace, "secrets"), "", "", ""},
	},
	"sonde-watchdog": {
		{"renew its lease", http.MethodPut, leases(apart) + "/sonde-watchdog", "application/yaml", lease("sonde-watchdog"), ""},
		{"read a kubeconfig", http.MethodGet, core(listed, "secrets") + "/probe", "", "", ""},
		{"protect a dependant", http.MethodPatch, deployments(listed) + "/" + dependant, merge,
			`{"metadata": {"annotations": {"dependency-watchdog.gardener.cloud/replicas": "1", "dependency-watchdog.gardener.cloud/meltdown-protection-active": ""}}}`, ""},
		{"release a dependant", http.MethodPatch, deployments(listed) + "/" + dependant, merge,
			`{"metadata": {"annotations": {"dependency-watchdog.gardener.cloud/replicas": null, "dependency-watchdog.gardener.cloud/meltdown-protection-active": null}}}`, ""},
		{"scale a dependant", http.MethodPut, deployments(listed) + "/" + dependant + "/scale", "application/yaml", "{apiVersion: autoscaling/v1, kind: Scale, metadata: {name: " + dependant + ", namespace: " + listed + "}, spec: {replicas: 0}}", ""},
	},
}
