package chart_test

import (
	"slices"
	"testing"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// The right to patch what makes pods comes with the policy that holds it to one annotation, which test/kube tries, or not at all.
func TestRightToRetryNeedsItsPolicy(t *testing.T) {
	tests := map[string]struct {
		flags []string
		want  bool
	}{
		"by default":             {nil, true},
		"the first with the API": {[]string{"--kube-version=1.30.0"}, true},
		"without the API":        {[]string{"--kube-version=1.29.9"}, false},
		"switched off":           {[]string{"--set=retryAfterOutage=false"}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var role rbacv1.ClusterRole
			var policy admissionregistration.ValidatingAdmissionPolicy
			var binding admissionregistration.ValidatingAdmissionPolicyBinding
			only(t, "ClusterRole", &role, tc.flags...)
			may := slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
				return slices.Contains(r.Resources, "jobs") && slices.Contains(r.Verbs, "patch")
			})
			hasPolicy, hasBinding := only(t, "ValidatingAdmissionPolicy", &policy, tc.flags...), only(t, "ValidatingAdmissionPolicyBinding", &binding, tc.flags...)
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
