package chart_test

import (
	"slices"
	"testing"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/sonde-mesh/sonde/test/chart"
)

// The rights to patch what makes pods, and the status of pods, come with the policies that hold them to one annotation, and to one condition, which test/kube
// tries, or not at all.
func TestRightsNeedTheirPolicies(t *testing.T) {
	tests := map[string]struct {
		policy, resource string
		flags            []string
		want             bool
	}{
		"retry":                                    {"sonde-retry", "jobs", nil, true},
		"retry, the first with the API":            {"sonde-retry", "jobs", []string{"--kube-version=1.30.0"}, true},
		"retry, without the API":                   {"sonde-retry", "jobs", []string{"--kube-version=1.29.9"}, false},
		"retry, switched off":                      {"sonde-retry", "jobs", []string{"--set=retryAfterOutage=false"}, false},
		"a condition":                              {"sonde-liveness-held", "pods/status", nil, true},
		"a condition, without retries":             {"sonde-liveness-held", "pods/status", []string{"--set=retryAfterOutage=false"}, true},
		"a condition, without the API of policies": {"sonde-liveness-held", "pods/status", []string{"--kube-version=1.29.9"}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var role rbacv1.ClusterRole
			var policy admissionregistration.ValidatingAdmissionPolicy
			var binding admissionregistration.ValidatingAdmissionPolicyBinding
			named(t, "ClusterRole", "sonde-cp", &role, tc.flags...)
			may := slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
				return slices.Contains(r.Resources, tc.resource) && slices.Contains(r.Verbs, "patch")
			})
			called := func(kind string) func(chart.Manifest) bool {
				return func(m chart.Manifest) bool { return m.Kind == kind && m.Name == tc.policy }
			}
			hasPolicy, hasBinding := find(t, called("ValidatingAdmissionPolicy"), &policy, tc.flags...), find(t, called("ValidatingAdmissionPolicyBinding"), &binding, tc.flags...)
			if may != tc.want || hasPolicy != tc.want || hasBinding != tc.want {
				t.Errorf("right %t, policy %t, binding %t, want %t", may, hasPolicy, hasBinding, tc.want)
			}
			if tc.want && (*policy.Spec.FailurePolicy != admissionregistration.Fail || binding.Spec.PolicyName != policy.Name ||
				!slices.Equal(binding.Spec.ValidationActions, []admissionregistration.ValidationAction{admissionregistration.Deny})) {
				t.Errorf("policy %+v, binding %+v: want one that denies, also where it fails", policy.Spec.FailurePolicy, binding.Spec)
			}
		})
	}
}
