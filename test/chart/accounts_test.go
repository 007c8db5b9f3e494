package chart_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/sonde-mesh/sonde/test/chart"
	"github.com/sonde-mesh/sonde/test/harness"
)

// accountRow is a row of the table of rights in SECURITY.md: account, where, verbs, resources, names, and the reason.
var accountRow = regexp.MustCompile("(?m)^\\| (`sond\\S+` \\| [^|]+ \\| `[^|]+` \\| `[^|]+` \\| [^|]*?) ?\\| ([^|]+) \\|$")

// TestAccountsInDocs compares the table of SECURITY.md with the chart's rights, both ways.
func TestAccountsInDocs(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, row := range accountRow.FindAllStringSubmatch(string(page), -1) {
		if documented[row[1]] {
			t.Errorf("SECURITY.md has the row twice: %s", row[1])
		}
		documented[row[1]] = true
	}
	given := map[string]bool{}
	for account, rights := range rightsOfAccounts(t) {
		for _, right := range rights {
			given["`"+account+"` | "+right] = true
		}
	}
	for _, row := range slices.Sorted(maps.Keys(given)) {
		if !documented[row] {
			t.Errorf("SECURITY.md lacks: | %s | why |", row)
		}
	}
	for _, row := range slices.Sorted(maps.Keys(documented)) {
		if !given[row] {
			t.Errorf("the chart does not give: %s", row)
		}
	}
}

// rightsOfAccounts returns each account's rights with all optional features, as rows of the table.
func rightsOfAccounts(t *testing.T) map[string][]string {
	t.Helper()
	flags := []string{withWatchdog, "--set=watchdog.gardener.enabled=true", "--set=watchdog.namespace=apart", "--set=watchdog.namespaces[0].name=listed", "--set=watchdog.namespaces[0].secrets={listed}", "--set=cni.enabled=true"}
	all, err := chart.Render(t.Context(), flags...)
	if err != nil {
		t.Fatal(err)
	}
	hooks, err := chart.Hooks(t.Context(), flags...)
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, hooks...)
	rules, rights := rolesOf(t, all), map[string][]string{}
	for _, m := range all {
		if m.Kind != "RoleBinding" && m.Kind != "ClusterRoleBinding" {
			continue
		}
		var binding rbacv1.RoleBinding
		if err := m.Decode(&binding); err != nil {
			t.Fatal(err)
		}
		of, is := rules[strings.Join([]string{binding.RoleRef.Kind, binding.Namespace, binding.RoleRef.Name}, "/")]
		if !is || len(binding.Subjects) != 1 || binding.Subjects[0].Kind != rbacv1.ServiceAccountKind {
			t.Errorf("%s %s binds %+v to %+v, want a role of the chart and one account", m.Kind, m.Name, binding.RoleRef, binding.Subjects)
			continue
		}
		account := binding.Subjects[0].Name
		where := map[string]string{"": "everywhere", binding.Subjects[0].Namespace: "its namespace", "listed": "`watchdog.namespaces`"}[binding.Namespace]
		for _, rule := range of {
			rights[account] = append(rights[account], rowOf(where, binding.Namespace, rule))
		}
	}
	return rights
}

// rolesOf returns the rules of roles, by kind, namespace and name.
func rolesOf(t *testing.T, all []chart.Manifest) map[string][]rbacv1.PolicyRule {
	t.Helper()
	rules := map[string][]rbacv1.PolicyRule{}
	for _, m := range all {
		if m.Kind != "Role" && m.Kind != "ClusterRole" {
			continue
		}
		var role struct {
			rbacv1.Role `json:",inline"`
			Aggregation *rbacv1.AggregationRule `json:"aggregationRule"`
		}
		if err := m.Decode(&role); err != nil {
			t.Fatal(err)
		}
		if role.Aggregation != nil || strings.Contains(m.YAML, "rbac.authorization.k8s.io/aggregate-to-") {
			t.Errorf("%s %s is aggregated: who has its rights is not in the chart", m.Kind, m.Name)
		}
		rules[strings.Join([]string{m.Kind, role.Namespace, m.Name}, "/")] = role.Rules
	}
	return rules
}

// rowOf returns namespace, verbs, resources and names of a rule.
func rowOf(where, namespace string, rule rbacv1.PolicyRule) string {
	if where == "" {
		where = "`" + namespace + "`"
	}
	resources := make([]string, len(rule.Resources))
	for i, resource := range rule.Resources {
		if resources[i] = resource; rule.APIGroups[0] != "" {
			kind, sub, has := strings.Cut(resource, "/")
			if resources[i] = kind + "." + rule.APIGroups[0]; has {
				resources[i] += "/" + sub
			}
		}
	}
	names := ""
	if len(rule.ResourceNames) > 0 {
		names = "`" + strings.Join(rule.ResourceNames, ", ") + "`"
	}
	return fmt.Sprintf("%s | `%s` | `%s` | %s", where, strings.Join(rule.Verbs, ", "), strings.Join(resources, ", "), names)
}
