package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/test/chart"
	"github.com/sonde-mesh/sonde/test/must"
)

// lines runs sondectl check, and returns the lines of one check with their details.
func (p *person) lines(name string, args ...string) string {
	p.Helper()
	stdout, stderr, code := p.calls(append([]string{"check"}, args...)...)
	if failed := strings.Contains(stdout, "[fail]"); stdout == "" || failed != (code == 6) || !failed && code != 0 {
		p.Errorf("sondectl check: exit code %d, stderr %q, stdout:\n%s", code, stderr, stdout)
	}
	var found strings.Builder
	shown := false
	for line := range strings.Lines(stdout) {
		if strings.HasPrefix(line, "[") {
			_, text, _ := strings.Cut(line, "]")
			shown = strings.HasPrefix(strings.TrimLeft(text, " "), name+": ")
		}
		if shown {
			found.WriteString(line)
		}
	}
	return found.String()
}

// says waits until the check prints these lines. It waits because the API server caches authorization for a moment.
func (p *person) says(name, want string, args ...string) {
	p.Helper()
	want = strings.TrimPrefix(want, "\n")
	must.Poll(p.T, "the result of check"+name, func(context.Context) error {
		if is := p.lines(name, args...); is != want {
			return fmt.Errorf("lines\n%s\nwant\n%s", is, want)
		}
		return nil
	})
}

// On an empty cluster, each check before the installation succeeds. For a user without rights, it lists every right
// that installing the chart needs.
func TestCheckBeforeInstallation(t *testing.T) {
	client := newClient(t)
	p := administrator(t)
	p.says("API server", "[ok]   API server: v1.37.2\n")
	p.says("CustomResourceDefinitions", "[ok]   CustomResourceDefinitions: 5 definitions of this release\n")
	p.says("control planes", "[ok]   control planes: none installed yet\n")
	p.says("your rights", "[ok]   your rights: you have the rights to create all objects of the chart\n")
	p.says("other meshes", "[ok]   other meshes: no other mesh injects pods\n")

	const definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/restartbudgets.sonde.dev"
	change := func(patch string) {
		t.Helper()
		if _, err := cluster.Do(t.Context(), http.MethodPatch, definition, "application/json-patch+json", patch); err != nil {
			t.Fatal(err)
		}
	}
	const description = "/spec/versions/0/schema/openAPIV3Schema/description"
	text, err := cluster.Do(t.Context(), http.MethodGet, definition, "", "")
	if err != nil {
		t.Fatal(err)
	}
	var before struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema struct{ Description string }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &before); err != nil {
		t.Fatal(err)
	}
	change(fmt.Sprintf(`[{"op": "replace", "path": %q, "value": "of another release"}]`, description))
	p.says("CustomResourceDefinitions", `
[warn] CustomResourceDefinitions: installed by another release: restartbudgets.sonde.dev
       do: install or upgrade to the chart of sondectl's release, which updates the definitions
`)
	change(fmt.Sprintf(`[{"op": "replace", "path": %q, "value": %q}]`, description, before.Spec.Versions[0].Schema.OpenAPIV3Schema.Description))
	p.says("CustomResourceDefinitions", "[ok]   CustomResourceDefinitions: 5 definitions of this release\n")

	namespace(t, client, "check-none", nil)
	nobody := &person{t, filepath.Join(t.TempDir(), "kubeconfig")}
	if err := cluster.WriteKubeconfig(nobody.kubeconfig, cluster.Config.Host, accountToken(t, client, "check-none", "default", "https://kubernetes.default.svc")); err != nil {
		t.Fatal(err)
	}
	nobody.says("kubelets", `
[warn] kubelets: not checked: list nodes: nodes is forbidden: User "system:serviceaccount:check-none:default" cannot list resource "nodes" in API group "" at the cluster scope
       do: get the right, or ask a user who has it to check
`)
	if missing := nobody.missing("your rights"); !slices.Equal(missing, madeByChart(t)) {
		t.Errorf("a user without rights lacks %q, want %q", missing, madeByChart(t))
	}
}

// missing returns the missing rights, sorted.
func (p *person) missing(name string, args ...string) []string {
	p.Helper()
	stdout, stderr, code := p.calls(append([]string{"check", "-o", "json"}, args...)...)
	var lines []struct {
		Name, Level, Text string
		Notes             []string
	}
	if err := json.Unmarshal([]byte(stdout), &lines); err != nil || code != 6 {
		p.Fatalf("sondectl check -o json: exit code %d, %v, %s", code, err, stderr)
	}
	for _, l := range lines {
		if l.Name == name {
			return slices.Sorted(slices.Values(l.Notes))
		}
	}
	return nil
}

// madeByChart returns the rights that installing the chart needs, sorted.
func madeByChart(t *testing.T) []string {
	t.Helper()
	manifests, err := chart.Render(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hooks, err := chart.Hooks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Rights that Helm needs besides the chart's objects, and rights to grant roles.
	rights := map[string]bool{"create namespaces": true, "create secrets": true, "create customresourcedefinitions.apiextensions.k8s.io": true, "escalate clusterroles.rbac.authorization.k8s.io": true}
	for _, m := range slices.Concat(manifests, hooks) {
		var head metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(m.YAML), &head); err != nil {
			t.Fatal(err)
		}
		resource := strings.TrimSuffix(strings.ToLower(head.Kind), "y")
		if resource == strings.ToLower(head.Kind) {
			resource += "s"
		} else {
			resource += "ies"
		}
		if group := head.GroupVersionKind().Group; group != "" {
			resource += "." + group
		}
		rights["create "+resource] = true
	}
	var all []string
	for r := range rights {
		all = append(all, r)
	}
	slices.Sort(all)
	return all
}

// For a bad kubeconfig, cluster or flag, sondectl prints only that error.
func TestCheckOfNoInstallation(t *testing.T) {
	client := newClient(t)
	namespace(t, client, systemNamespace, nil)
	p := administrator(t)
	p.fails(3, `sondectl: check: find control plane: namespace "sonde-system" of the cluster at API has no control plane: no pod has the label app.kubernetes.io/name=sonde: `+
		`install Sonde there, or set --control-plane-namespace or --address; run check without --installed to see what an installation waits for`, "check", "--installed")
	p.fails(2, `sondectl: check: --kube-context: "prod": must be a context of CONFIG: test (see sondectl check --help)`, "check", "--kube-context=prod")
	p.fails(2, `sondectl: check: --pod-namespace: "shop": must not be given without --installed (see sondectl check --help)`, "check", "--pod-namespace=shop")
	p.fails(2, `sondectl: check: --address: must not be set: this command only finds the control plane in the kubeconfig's cluster (see sondectl check --help)`, "check", "--address=127.0.0.1:1")

	k := startKubelet(t, client)
	k.run(t, systemNamespace, "sonde-cp-a", "sonde", nil)
	p.says("control planes", `
[warn] control planes: release "sonde" in namespace "sonde-system" is already installed
       do: check it with --installed, or upgrade it with helm upgrade
`)
	for _, wrong := range []string{systemNamespace, "kube-system"} {
		p.fails(2, `sondectl: check: --pod-namespace: "`+wrong+`": must be a namespace whose pods can be injected: not kube-system, and not the control plane's (see sondectl check --help)`,
			"check", "--installed", "--pod-namespace="+wrong)
	}
	namespace(t, client, "check-second", nil)
	k.run(t, "check-second", "sonde-cp-b", "other", nil)
	p.says("control planes", `
[fail] control planes: the cluster already has a control plane: a second one would overwrite its webhook configurations and ClusterRoles
       release "other" in namespace "check-second"
       do: upgrade the existing one, and check it with --installed --control-plane-namespace
`)
	p.fails(2, `sondectl: check: --control-plane-namespace: must be given: several control planes found: release "other" in namespace "check-second", release "sonde" in namespace "sonde-system" (see sondectl check --help)`, "check", "--installed")

	expired := &person{t, filepath.Join(t.TempDir(), "kubeconfig")}
	if err := cluster.WriteKubeconfig(expired.kubeconfig, cluster.Config.Host, withClaims(t, `{"exp":1}`)); err != nil {
		t.Fatal(err)
	}
	expired.fails(1, `sondectl: check: get version of the API server: the API server at API rejects the credentials of context "test" of the kubeconfig: they may have expired, log in again`, "check")
	if err := cluster.WriteKubeconfig(expired.kubeconfig, "https://127.0.0.1:1", "x"); err != nil {
		t.Fatal(err)
	}
	expired.fails(3, `sondectl: check: get version of the API server: no response from the API server at https://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused`, "check")
}
