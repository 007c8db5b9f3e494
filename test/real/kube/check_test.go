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

// lines runs sondectl check, and returns the lines of one check, each with what is below it.
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

// says checks the lines of one check. It waits for them: what the API server has allowed it remembers for a moment.
func (p *person) says(name, want string, args ...string) {
	p.Helper()
	want = strings.TrimPrefix(want, "\n")
	must.Poll(p.T, "what check says of "+name, func(context.Context) error {
		if is := p.lines(name, args...); is != want {
			return fmt.Errorf("lines\n%s\nwant\n%s", is, want)
		}
		return nil
	})
}

// Before an installation each line is good on an empty cluster, and says what a user without rights may not do: that is all that the chart makes.
func TestCheckBeforeInstallation(t *testing.T) {
	client := newClient(t)
	p := administrator(t)
	p.says("API server", "[ok]   API server: v1.36.3\n")
	p.says("CustomResourceDefinitions", "[ok]   CustomResourceDefinitions: 5 definitions of this release\n")
	p.says("control planes", "[ok]   control planes: none is there yet\n")
	p.says("your rights", "[ok]   your rights: you may make what the chart makes\n")
	p.says("other meshes", "[ok]   other meshes: none injects pods\n")

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
       do: install or upgrade the chart of the release that sondectl is of, which brings them to its version
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
       do: have it checked by a user who has the right, or get that
`)
	if missing := nobody.missing("your rights"); !slices.Equal(missing, madeByChart(t)) {
		t.Errorf("a user without rights lacks %q, want %q", missing, madeByChart(t))
	}
}

// missing returns the rights that are missing, sorted.
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

// madeByChart returns the rights that it takes to make what the chart has, sorted.
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
	// What Helm makes beside them, and what it takes to give rights.
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

// Bad input: what the kubeconfig, the cluster and flags lack is said, and nothing else is.
func TestCheckOfNoInstallation(t *testing.T) {
	client := newClient(t)
	namespace(t, client, systemNamespace, nil)
	p := administrator(t)
	p.fails(3, `sondectl: check: find the control plane: namespace "sonde-system" of the cluster at API has no control plane: no pod has the label app.kubernetes.io/name=sonde: `+
		`install Sonde there, name another namespace with --control-plane-namespace, or an address with --address; check without --installed says what an installation waits for`, "check", "--installed")
	p.fails(2, `sondectl: check: --kube-context: "prod": must be a context of CONFIG: test (see sondectl check --help)`, "check", "--kube-context=prod")
	p.fails(2, `sondectl: check: --pod-namespace: "shop": must not be given without --installed (see sondectl check --help)`, "check", "--pod-namespace=shop")
	p.fails(2, `sondectl: check: --address: must not be given: this command finds the control plane in the cluster of the kubeconfig (see sondectl check --help)`, "check", "--address=127.0.0.1:1")

	k := startKubelet(t, client)
	k.run(t, systemNamespace, "sonde-cp-a", "sonde", nil)
	p.says("control planes", `
[warn] control planes: release "sonde" in namespace "sonde-system" is there already
       do: check it with --installed. helm upgrade replaces it
`)
	for _, wrong := range []string{systemNamespace, "kube-system"} {
		p.fails(2, `sondectl: check: --pod-namespace: "`+wrong+`": must be one whose pods may be injected: neither kube-system nor that of the control plane (see sondectl check --help)`,
			"check", "--installed", "--pod-namespace="+wrong)
	}
	namespace(t, client, "check-second", nil)
	k.run(t, "check-second", "sonde-cp-b", "other", nil)
	p.says("control planes", `
[fail] control planes: there is one already: another one would take its webhook configurations and ClusterRoles
       release "other" in namespace "check-second"
       do: upgrade that one, and check it with --installed --control-plane-namespace
`)
	p.fails(2, `sondectl: check: --control-plane-namespace: must be given: there are several control planes: release "other" in namespace "check-second", release "sonde" in namespace "sonde-system" (see sondectl check --help)`, "check", "--installed")

	expired := &person{t, filepath.Join(t.TempDir(), "kubeconfig")}
	if err := cluster.WriteKubeconfig(expired.kubeconfig, cluster.Config.Host, withClaims(t, `{"exp":1}`)); err != nil {
		t.Fatal(err)
	}
	expired.fails(1, `sondectl: check: ask for the version of the API server: the API server at API does not accept the credentials of context "test" of the kubeconfig: they may have expired, so log in again`, "check")
	if err := cluster.WriteKubeconfig(expired.kubeconfig, "https://127.0.0.1:1", "x"); err != nil {
		t.Fatal(err)
	}
	expired.fails(3, `sondectl: check: ask for the version of the API server: no answer from the API server at https://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused`, "check")
}
