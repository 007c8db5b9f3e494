package watchdog

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer/printertest"
)

func TestTablesFit(t *testing.T) {
	since, replicas := metav1.NewTime(time.Now().Add(-100*time.Minute)), int32(3)
	ref := v1alpha1.DependantRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "machine-controller-manager"}
	cluster := v1alpha1.WatchedCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shoot--garden--aws-1", Name: "shoot--garden--aws-1"},
		Spec:       v1alpha1.WatchedClusterSpec{Paused: true, Dependants: make([]v1alpha1.WatchedDependant, 3)},
		Status: v1alpha1.WatchedClusterStatus{
			Verdict: "unknown", Cause: "api-server-away", Since: &since, Steps: []v1alpha1.ScaleStep{{Ref: ref, State: "Lowered", Replicas: 3}},
		},
	}
	explained := &Explanation{
		Namespace: cluster.Namespace, Name: cluster.Name,
		Dependants: []Dependant{{Ref: ref, Replicas: &replicas, Before: 3, Step: "Lowering", Next: "scale-down"}},
	}
	for name, write := range map[string]func(*printer.Output) error{
		"status": func(out *printer.Output) error { return write(out, []v1alpha1.WatchedCluster{cluster}, printer.Table) },
		"explain": func(out *printer.Output) error {
			explained.write(out)
			return nil
		},
		"zones": func(out *printer.Output) error {
			(&Explanation{Nodes: []Zone{{NodeCount: v1alpha1.NodeCount{Zone: "eu-central-1a", Nodes: 1000, Silent: 1000, Unheard: 1000}, Verdict: "unknown", Cause: "api-server-away"}}}).write(out)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out printer.Output
			if err := write(&out); err != nil {
				t.Fatal(err)
			}
			printertest.Fits(t, out.String())
		})
	}
}
