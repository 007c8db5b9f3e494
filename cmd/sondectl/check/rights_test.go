package check

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestRights(t *testing.T) {
	answers := func(allowed bool) read[[]answer] {
		return is([]answer{
			{right{verb: "create", group: "sonde.dev", resource: "meshes"}, true}, {right{verb: "patch", resource: "pods/status"}, allowed},
			{right{verb: "patch", group: "sonde.dev", resource: "restartgrants/status", name: "x"}, allowed},
		})
	}
	tests{
		"all": {facts{rights: answers(true)}, "[ok]   your rights: you have the rights to create all objects of the chart\n"},
		"some": {facts{rights: answers(false)}, `
[fail] your rights: you lack rights to create all objects of the chart
       patch pods/status
       patch restartgrants.sonde.dev/status named x
       do: install as a user with these rights, for example with the ClusterRole cluster-admin
`},
	}.run(t, yourRights)
	tests{
		"all": {facts{rights: answers(true)}, "[ok]   rights of the control plane: service account sonde-cp has all rights\n"},
		"unknown": {facts{rights: read[[]answer]{err: errForbidden}}, `
[warn] rights of the control plane: not checked: things is forbidden: no right
       do: get the right, or ask a user who has it to check
`},
	}.run(t, planeRights)
}

// Before Kubernetes 1.30, and if cert-manager writes the CA, the chart grants fewer rights.
func TestRightsOfPlane(t *testing.T) {
	all := len(ofPlane("v1.30.0", false))
	if old := len(ofPlane("v1.29.0", false)); old != all-1 {
		t.Errorf("%d rights before Kubernetes 1.30, want one less than %d", old, all)
	}
	if others := len(ofPlane("v1.30.0", true)); others != all-6 {
		t.Errorf("%d rights where another program writes the CA, want six less than %d", others, all)
	}
}

func TestDefinitions(t *testing.T) {
	there := func(change func(*unstructured.Unstructured)) read[[]unstructured.Unstructured] {
		all, err := ourDefinitions()
		if err != nil {
			t.Fatal(err)
		}
		for i := range all {
			_ = unstructured.SetNestedSlice(all[i].Object, []any{map[string]any{"type": "Established", "status": "True"}}, "status", "conditions")
		}
		if change != nil {
			change(&all[0])
		}
		return is(all)
	}
	const do = "       do: install or upgrade to the chart of sondectl's release, which updates the definitions\n"
	without := there(nil)
	without.is = without.is[1:]
	tests{
		"all":      {facts{definitions: there(nil)}, "[ok]   CustomResourceDefinitions: 5 definitions of this release\n"},
		"none yet": {facts{}, "[ok]   CustomResourceDefinitions: none installed yet: the chart installs them\n"},
		"of another release": {facts{definitions: there(func(u *unstructured.Unstructured) {
			_ = unstructured.SetNestedSlice(u.Object, []any{map[string]any{"name": "v1alpha1", "schema": map[string]any{}}}, "spec", "versions")
		})}, "[warn] CustomResourceDefinitions: installed by another release: dataplanes.sonde.dev\n" + do},
		"not served": {facts{definitions: there(func(u *unstructured.Unstructured) { delete(u.Object, "status") })}, `
[fail] CustomResourceDefinitions: not served: dataplanes.sonde.dev
       do: see the conditions in kubectl describe crd
`},
		"one is missing": {facts{installed: true, definitions: without}, "[fail] CustomResourceDefinitions: missing: dataplanes.sonde.dev\n" + do},
	}.run(t, definitions)
}
