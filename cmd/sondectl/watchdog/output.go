package watchdog

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// write writes clusters.
func write(out *printer.Output, clusters []v1alpha1.WatchedCluster, as printer.Format) error {
	slices.SortFunc(clusters, func(a, b v1alpha1.WatchedCluster) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return printer.Write(out, as, clusters, func() {
		rows := make([]printer.Row, len(clusters))
		for i := range clusters {
			rows[i] = rowOf(&clusters[i], time.Now())
		}
		printer.WriteTable(out, []string{"NAMESPACE", "CLUSTER", "NODES", "SINCE", "PAUSED", "SCALED"}, rows)
	})
}

func rowOf(c *v1alpha1.WatchedCluster, now time.Time) printer.Row {
	s := &c.Status
	paused, since := "", ""
	if c.Spec.Paused {
		paused = "yes"
	}
	if s.Since != nil {
		since = duration.HumanDuration(max(0, now.Sub(s.Since.Time)))
	}
	row := printer.Row{Cells: []string{
		c.Namespace, c.Name, s.Verdict, since, paused, fmt.Sprintf("%d/%d", len(s.Steps), len(c.Spec.Dependants)),
	}}
	if s.Cause != "" {
		row.Notes = append(row.Notes, "cause: "+s.Cause)
	}
	for _, condition := range s.Conditions {
		if condition.Status == metav1.ConditionFalse {
			row.Notes = append(row.Notes, condition.Type+": "+condition.Message)
		}
	}
	for _, z := range s.Zones {
		row.Notes = append(row.Notes, strings.TrimSpace("zone "+z.Name+" "+z.Verdict+" "+z.Cause))
	}
	for _, step := range s.Steps {
		row.Notes = append(row.Notes, fmt.Sprintf("%s %s: %s, replicas %d", step.Ref.Kind, step.Ref.Name, step.State, step.Replicas))
	}
	return row
}
