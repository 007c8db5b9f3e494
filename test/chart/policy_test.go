package chart_test

import (
	"slices"
	"testing"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/sonde-mesh/sonde/test/chart"
)

// The rights to patch workloads and the status of pods are only granted together with the policies that limit them to
// one annotation and one condition. test/real/kube tests these policies.
func TestRightsNeedTheirPolicies(t *testing.T) {
	tests := map[string]struct {
		policy, resource string
		flags            []string
		want             bool
	}{
		"retry":                                    {"sonde-retry", "jobs", nil, true},
		"retry, first version with the API":        {"sonde-retry", "jobs", []string{"--kube-version=1.30.0"}, true},
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
				t.Errorf("policy %+v, binding %+v: want one that denies, also if it fails", policy.Spec.FailurePolicy, binding.Spec)
			}
		})
	}
}

// Policies limit what RBAC cannot express, if the API server supports them. test/real/kube tests
// the policies.
func TestPolicies(t *testing.T) {
	const certManager = "--set=webhook.certificate.secretName=a,webhook.certificate.injectCAFrom=a/b"
	for name, flags := range map[string]map[bool][][]string{
		"sonde-cp-own-objects":       {true: {{certManager}}, false: {{"--set=controlPlane.enabled=false"}}},
		"sonde-webhook-ca":           {true: {{}}, false: {{certManager}}},
		"sonde-cni-condition":        {true: {{"--set=cni.enabled=true"}}, false: {{}}},
		"sonde-watchdog-own-objects": {true: {{}}, false: {{"--set=watchdog.enabled=false"}}},
		"sonde-watchdog-dependants": {true: {{}}, false: {
			{"--set=watchdog.enabled=false"}, {"--set=watchdog.dependantsPolicy=false"}, {"--set=watchdog.dependants=null"}, {"--set=watchdog.dependants.apps=null"},
		}},
	} {
		has := func(flags ...string) (bool, bool) {
			t.Helper()
			var policy admissionregistration.ValidatingAdmissionPolicy
			var binding admissionregistration.ValidatingAdmissionPolicyBinding
			called := func(kind string) func(chart.Manifest) bool {
				return func(m chart.Manifest) bool { return m.Kind == kind && m.Name == name }
			}
			flags = append([]string{withWatchdog}, flags...)
			hasPolicy, hasBinding := find(t, called("ValidatingAdmissionPolicy"), &policy, flags...), find(t, called("ValidatingAdmissionPolicyBinding"), &binding, flags...)
			if hasPolicy && (*policy.Spec.FailurePolicy != admissionregistration.Fail || binding.Spec.PolicyName != policy.Name ||
				!slices.Equal(binding.Spec.ValidationActions, []admissionregistration.ValidationAction{admissionregistration.Deny})) {
				t.Errorf("policy %+v, binding %+v: want one that denies, also if it fails", policy.Spec.FailurePolicy, binding.Spec)
			}
			return hasPolicy, hasBinding
		}
		for want, cases := range flags {
			for _, flags := range cases {
				if policy, binding := has(append(flags, "--kube-version=1.30.0")...); policy != want || binding != want {
					t.Errorf("%q: policy %s %t, its binding %t, want %t", flags, name, policy, binding, want)
				}
			}
		}
		if policy, binding := has("--kube-version=1.29.9"); policy || binding {
			t.Errorf("policy %s before Kubernetes 1.30", name)
		}
	}
}
