package chart_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/sonde-mesh/sonde/test/harness"
)

// TestProductionValues renders the chart with the values of docs/guides/production.md.
func TestProductionValues(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	guide, err := os.ReadFile(filepath.Join(root, "docs", "guides", "production.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```yaml\n(replicas:.*?)^```$").FindAllSubmatch(guide, -1)
	if len(blocks) != 1 {
		t.Fatalf("the guide has %d blocks of values, want one", len(blocks))
	}
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, blocks[0][1], 0o600); err != nil {
		t.Fatal(err)
	}
	var deployment appsv1.Deployment
	var policy networkingv1.NetworkPolicy
	if !only(t, "Deployment", &deployment, "--values="+values) || !only(t, "NetworkPolicy", &policy, "--values="+values) {
		t.Fatal("no Deployment, or no NetworkPolicy")
	}
	limit := deployment.Spec.Template.Spec.Containers[0].Resources.Limits.Memory()
	if *deployment.Spec.Replicas != 3 || limit.String() != "768Mi" || len(policy.Spec.Ingress) == 0 {
		t.Errorf("%d replicas with %s, and rules %v: want 3, 768Mi and some", *deployment.Spec.Replicas, limit, policy.Spec.Ingress)
	}
}
