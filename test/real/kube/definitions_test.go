package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/crds"
	"github.com/sonde-mesh/sonde/controller/definitions"
	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/test/chart"
	"github.com/sonde-mesh/sonde/test/must"
)

// These tests change this definition, which no other test of this package needs.
const (
	changedDefinition = "watchedclusters.sonde.dev"
	changedFile       = "sonde.dev_watchedclusters.yaml"
)

var definitionsResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// hookClient returns a client with the rights of the chart's hook, except for the given verbs.
func hookClient(t *testing.T, without ...string) dynamic.Interface {
	t.Helper()
	client := newClient(t)
	namespace(t, client, systemNamespace, nil)
	manifests, err := chart.Hooks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	installAccounts(t, client, manifests)
	installRights(t, client, manifests)
	roles := client.RbacV1()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := errors.Join(roles.ClusterRoleBindings().Delete(ctx, "sonde-crds", metav1.DeleteOptions{}), roles.ClusterRoles().Delete(ctx, "sonde-crds", metav1.DeleteOptions{})); err != nil {
			t.Error(err)
		}
	})
	role, err := roles.ClusterRoles().Get(t.Context(), "sonde-crds", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range role.Rules {
		role.Rules[i].Verbs = slices.DeleteFunc(role.Rules[i].Verbs, func(verb string) bool { return slices.Contains(without, verb) })
	}
	if _, err := roles.ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"get", "patch", "create"} {
		awaitRight(t, client, systemNamespace, "sonde-crds", authorizationv1.ResourceAttributes{
			Verb: verb, Group: definitionsResource.Group, Resource: definitionsResource.Resource, Name: changedDefinition,
		}, !slices.Contains(without, verb))
	}
	token, err := client.CoreV1().ServiceAccounts(systemNamespace).CreateToken(t.Context(), "sonde-crds", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(cluster.Config)
	config.BearerToken = token.Status.Token
	return dynamicClient(t, config)
}

func dynamicClient(t *testing.T, config *rest.Config) dynamic.Interface {
	t.Helper()
	c, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// definition returns the changed definition, read as an administrator.
func definition(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	u, err := dynamicClient(t, cluster.Config).Resource(definitionsResource).Get(t.Context(), changedDefinition, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// applyDefinitions applies definitions, also from a cleanup.
func applyDefinitions(t *testing.T, o definitions.Options) error {
	t.Helper()
	return definitions.Apply(context.WithoutCancel(t.Context()), o) // the test may be ending
}

// of returns a release's definitions, in which one definition has these short names, or none.
func of(t *testing.T, shortNames ...string) fs.ReadDirFS {
	t.Helper()
	text, err := crds.Files.ReadFile(changedFile)
	if err != nil {
		t.Fatal(err)
	}
	var o map[string]any
	if err := yaml.Unmarshal(text, &o); err != nil {
		t.Fatal(err)
	}
	if err := unstructured.SetNestedStringSlice(o, shortNames, "spec", "names", "shortNames"); err != nil {
		t.Fatal(err)
	}
	if text, err = yaml.Marshal(o); err != nil {
		t.Fatal(err)
	}
	return fstest.MapFS{changedFile: {Data: text}}
}

func shortNames(t *testing.T) string {
	t.Helper()
	names, _, err := unstructured.NestedStringSlice(definition(t).Object, "spec", "names", "shortNames")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, ",")
}

// Definitions that another program installed, such as Helm from crds/, are upgraded to newer versions of Sonde and
// never downgraded; their objects stay.
func TestDefinitionsGoForward(t *testing.T) {
	hook := hookClient(t)
	namespace(t, newClient(t), "definitions", nil)
	watched := sondePath("definitions", "watchedclusters")
	apply(t, "definitions", "watchedclusters", `{apiVersion: sonde.dev/v1alpha1, kind: WatchedCluster, metadata: {name: kept}, spec: {local: true, dependants: [{ref: {apiVersion: apps/v1, kind: Deployment, name: a}, scaleUp: {level: 0}, scaleDown: {level: 0}}]}}`)
	for _, step := range []struct{ version, short, want, log string }{
		{"v0.1.0", "one", "one", `"definition applied" name=` + changedDefinition + ` created=false changed=true`},
		{"v0.1.0", "one", "one", "created=false changed=false"},
		{"v0.2.0", "two", "two", "changed=true"},
		{"v0.1.0", "one", "two", `"keeping a definition of a newer version" name=` + changedDefinition + " version=v0.2.0"},
		{"v0.2.1-0.20261127000000-0123456789ab", "three", "three", "changed=true"},
		{"unknown", "four", "four", "changed=true"}, // a definition of unknown version, which may be older
		{"v0.1.0", "one", "one", "changed=true"},
	} {
		var log logtest.Buffer
		o := definitions.Options{Client: hook, Files: of(t, step.short), Version: step.version, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		if err := applyDefinitions(t, o); err != nil {
			t.Fatalf("%s: %v", step.version, err)
		}
		if got := shortNames(t); got != step.want || len(log.Lines(step.log)) != 1 {
			t.Errorf("%s of %s: the definition has the short name %q, want %q with %s in the log:\n%s", step.short, step.version, got, step.want, step.log, &log)
		}
	}
	if _, err := cluster.Do(t.Context(), "GET", watched+"/kept", "", ""); err != nil {
		t.Errorf("an object of an operator: %v", err)
	}

	// Now with all definitions of this build: a missing definition is created.
	if err := dynamicClient(t, cluster.Config).Resource(definitionsResource).Delete(t.Context(), changedDefinition, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	must.Poll(t, "the end of the definition", func(ctx context.Context) error {
		_, err := cluster.Do(ctx, "GET", watched, "", "")
		if err == nil {
			return errors.New("the definition is still served")
		}
		return nil
	})
	if err := applyDefinitions(t, definitions.Options{Client: hook, Files: crds.Files, Version: "v0.3.0", Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	must.Poll(t, "the applied definition to be served", func(ctx context.Context) error { // at first, its storage may be initializing
		_, err := cluster.Do(ctx, "GET", watched, "", "")
		return err
	})
	if got := shortNames(t); got != "" {
		t.Errorf("short names %q", got)
	}
}

// The hook may change our definitions, and no other definition.
func TestRightsOfTheHook(t *testing.T) {
	missing := fstest.MapFS{"other.yaml": {Data: []byte(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: things.example.com}, spec: {
		group: example.com, names: {kind: Thing, plural: things}, scope: Cluster, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}`)}}
	tests := map[string]struct {
		without, want string
		files         fs.ReadDirFS
		deleted       bool
	}{
		"another definition": {want: `get CustomResourceDefinition things.example.com: customresourcedefinitions.apiextensions.k8s.io "things.example.com" is forbidden`, files: missing},
		"without get":        {without: "get", want: "cannot get resource", files: of(t)},
		"without patch":      {without: "patch", want: "cannot patch resource", files: of(t)},
		"without create":     {without: "create", want: "cannot create resource", files: of(t), deleted: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.deleted {
				admin := dynamicClient(t, cluster.Config)
				t.Cleanup(func() {
					o := definitions.Options{Client: admin, Files: crds.Files, Version: "v0.3.0", Logger: slog.New(slog.DiscardHandler)}
					if err := applyDefinitions(t, o); err != nil {
						t.Error(err)
					}
				})
				if err := admin.Resource(definitionsResource).Delete(t.Context(), changedDefinition, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				must.Poll(t, "the end of the definition", func(ctx context.Context) error {
					_, err := admin.Resource(definitionsResource).Get(ctx, changedDefinition, metav1.GetOptions{})
					if apierrors.IsNotFound(err) {
						return nil
					}
					return fmt.Errorf("get: %w", err)
				})
			}
			o := definitions.Options{Client: hookClient(t, tc.without), Files: tc.files, Version: "v0.3.0", Logger: slog.New(slog.DiscardHandler)}
			if err := applyDefinitions(t, o); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Apply() = %v, want %q", err, tc.want)
			}
		})
	}
}

// The hook's rights name the definitions of this build, like the chart's files.
func TestHookNamesAllDefinitions(t *testing.T) {
	manifests, err := chart.Hooks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range manifests {
		if m.Kind != "ClusterRole" {
			continue
		}
		var role rbacv1.ClusterRole
		if err := m.Decode(&role); err != nil {
			t.Fatal(err)
		}
		files, err := crds.Files.ReadDir(".")
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, f := range files { // sonde.dev_meshes.yaml
			group, plural, _ := strings.Cut(strings.TrimSuffix(f.Name(), ".yaml"), "_")
			want = append(want, plural+"."+group)
		}
		if d := cmp.Diff(want, role.Rules[0].ResourceNames); d != "" {
			t.Error(d)
		}
		return
	}
	t.Error("no ClusterRole found")
}
