package chart_test

import (
	"maps"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// sondectl may read everything, and sondectl-admin may call every method for which the admin API has a
// right.
func TestRightsOfSondectl(t *testing.T) {
	read, all := map[adminv1.Right]bool{}, map[adminv1.Right]bool{}
	for _, method := range adminv1.Methods() {
		right, ok := adminv1.RightOf(method)
		if !ok {
			continue // TestEachMethodHasARight
		}
		all[right] = true
		if !right.Changes() {
			read[right] = true
		}
	}
	for name, want := range map[string]map[adminv1.Right]bool{"sondectl": read, "sondectl-admin": all} {
		var role rbacv1.ClusterRole
		named(t, "ClusterRole", name, &role)
		granted := map[adminv1.Right]bool{}
		for _, rule := range role.Rules {
			if !slices.Equal(rule.APIGroups, []string{mesh.Group}) {
				t.Errorf("%s may do something in groups %q", name, rule.APIGroups)
			}
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					granted[adminv1.Right{Verb: verb, Resource: resource}] = true
				}
			}
		}
		if !maps.Equal(granted, want) {
			t.Errorf("%s may %v, want %v", name, granted, want)
		}
		var binding rbacv1.ClusterRoleBinding
		named(t, "ClusterRoleBinding", name, &binding)
		if s := binding.Subjects; len(s) != 1 || s[0].Kind != "ServiceAccount" || s[0].Name != name || s[0].Namespace != "sonde-system" || binding.RoleRef.Name != name {
			t.Errorf("%s is bound to %v, %v", name, binding.RoleRef, s)
		}
	}
}
