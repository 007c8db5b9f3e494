package watchdog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/cluster"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

func TestTable(t *testing.T) {
	since := metav1.NewTime(time.Now().Add(-5 * time.Minute))
	ref := v1alpha1.DependantRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "kcm"}
	var out printer.Output
	err := write(&out, []v1alpha1.WatchedCluster{
		{
			ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "x"}, Spec: v1alpha1.WatchedClusterSpec{Paused: true, Dependants: make([]v1alpha1.WatchedDependant, 2)},
			Status: v1alpha1.WatchedClusterStatus{
				Verdict: "lost", Cause: "one-zone", Since: &since, Steps: []v1alpha1.ScaleStep{{Ref: ref, State: "Lowered", Replicas: 3}},
				Zones: []v1alpha1.WatchedZone{{Name: "z", Verdict: "lost", Cause: "one-zone"}},
			},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "y"},
			Status:     v1alpha1.WatchedClusterStatus{Conditions: []metav1.Condition{{Type: "Accepted", Status: metav1.ConditionFalse, Message: "spec: bad"}, {Type: "Probed", Status: metav1.ConditionTrue, Message: "fine"}}},
		},
	}, printer.Table)
	if err != nil {
		t.Fatal(err)
	}
	want := `NAMESPACE  CLUSTER  NODES  SINCE  PAUSED  SCALED
a          y        -      -      -       0/0
           Accepted: spec: bad
b          x        lost   5m     yes     1/2
           cause: one-zone
           zone z lost one-zone
           Deployment kcm: Lowered, replicas 3
`
	if d := cmp.Diff(strings.Fields(want), strings.Fields(out.String())); d != "" {
		t.Errorf("%s\n%s", d, &out)
	}
}

// The output of import has the settings of the file.
func TestImport(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dep-config.yaml")
	text := "kubeConfigSecretName: probe\nnodeLeaseFailureFraction: 0.7\ndependentResourceInfos:\n- ref: {apiVersion: apps/v1, kind: Deployment, name: kcm}\n  scaleUp: {level: 0, initialDelay: 30s}\n  scaleDown: {level: 1}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out printer.Output
	cmd := Command(&out, &cluster.Options{})
	cmd.SetArgs([]string{"import", path, "--name=a", "--namespace=b"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got v1alpha1.WatchedCluster
	if err := yaml.UnmarshalStrict(out.Bytes(), &got); err != nil {
		t.Fatalf("%v in\n%s", err, &out)
	}
	fraction := 0.7
	want := v1alpha1.WatchedCluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: "sonde.dev/v1alpha1", Kind: "WatchedCluster"},
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b"},
		Spec: v1alpha1.WatchedClusterSpec{
			KubeconfigSecretName: "probe", Settings: v1alpha1.WatchSettings{NodeLeaseFailureFraction: &fraction},
			Dependants: []v1alpha1.WatchedDependant{{
				Ref:     v1alpha1.DependantRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "kcm"},
				ScaleUp: &v1alpha1.ScaleInfo{InitialDelay: &metav1.Duration{Duration: 30 * time.Second}}, ScaleDown: &v1alpha1.ScaleInfo{Level: 1},
			}},
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	cmd = Command(&out, &cluster.Options{})
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs([]string{"import", filepath.Join(t.TempDir(), "none.yaml")})
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "none.yaml: no such file") {
		t.Errorf("of no file: %v", err)
	}
}
