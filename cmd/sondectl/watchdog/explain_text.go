package watchdog

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/partition"
	"github.com/sonde-mesh/sonde/watchdog/config"
	"github.com/sonde-mesh/sonde/watchdog/scale"
)

// why explains the verdict about a cluster.
func why(o *v1alpha1.WatchedCluster, c *config.Cluster) string {
	s := &o.Status
	count := "the nodes"
	if len(s.Counts) > 0 {
		all := s.Counts[0]
		count = fmt.Sprintf("%d of %d nodes have not renewed their leases for %s", all.Silent, all.Nodes, c.Judge.Silence)
		if all.Unheard > 0 {
			count += fmt.Sprintf(", and %d have not renewed them since the leader started", all.Unheard)
		}
	}
	enter, leave := percent(c.Judge.Enter), percent(c.Judge.Leave)
	switch {
	case s.Verdict == "":
		return "no probe has judged the cluster yet"
	case s.Verdict == string(partition.Lost):
		return fmt.Sprintf("%s, although the API server answers: the loss begins at %s, and ends when fewer than %s are silent for %s, in at least %d probes in a row", count, enter, leave, c.Judge.Quiet, c.Judge.Calm)
	case s.Verdict == string(partition.Seen):
		return fmt.Sprintf("%s: a loss begins at %s", count, enter)
	case s.Cause == string(partition.Unheard):
		return fmt.Sprintf("%s: a loss begins at %s, so it may or may not be one", count, enter)
	case s.Cause == string(partition.Throttled):
		return "the API server throttles requests"
	case s.Cause == string(partition.APIServerAway):
		return "the API server does not respond, so silent nodes prove nothing"
	}
	return "the API server responds, but the nodes or their leases cannot be read"
}

func percent(fraction float64) string { return strconv.FormatFloat(fraction*100, 'f', 0, 64) + " %" }

// delayOf returns the delay before a dependant is scaled.
func delayOf(look *scale.Outlook, direction scale.Direction) time.Duration {
	switch {
	case look.Next == scale.ScaleDown && direction == scale.Down:
		return look.Dependant.Down.Delay
	case look.Next == scale.ScaleUp && direction == scale.Up:
		return look.Dependant.Up.Delay
	}
	return 0
}

// write writes facts, a table of zones and a table of dependants.
func (e *Explanation) write(out *printer.Output) {
	facts := &printer.Facts{}
	add := func(name, text string) {
		if text != "" {
			facts.Add(name, text)
		}
	}
	add("cluster", e.Namespace+"/"+e.Name)
	verdict := e.Verdict
	if verdict == "" {
		verdict = "none"
	}
	if e.Cause != "" {
		verdict += " (" + e.Cause + ")"
	}
	if e.Since != nil {
		verdict += " for " + ago(e.Since)
	}
	add("nodes", verdict)
	add("why", e.Why)
	if e.LostSince != nil {
		add("lost", "for "+ago(e.LostSince))
	}
	add("probe", e.Failed)
	add("refused", strings.ReplaceAll(e.Refused, "\n", "; "))
	if e.Paused {
		add("paused", "yes")
	}
	add("next", e.Next)
	facts.Write(out)
	if len(e.Nodes) > 0 {
		out.WriteByte('\n')
		e.writeNodes(out)
	}
	if len(e.Dependants) > 0 {
		out.WriteByte('\n')
		e.writeDependants(out)
	}
}

func ago(t *metav1.Time) string { return duration.HumanDuration(max(0, time.Since(t.Time))) }

func (e *Explanation) writeNodes(out *printer.Output) {
	rows := make([]printer.Row, 0, len(e.Nodes))
	for _, z := range e.Nodes {
		name := z.Zone
		if name == "" {
			name = "(all)"
		}
		rows = append(rows, printer.Row{
			Cells: []string{name, number(z.Nodes), number(z.Silent), number(z.Unheard), z.Verdict, z.Cause},
		})
	}
	printer.WriteTable(out, []string{"ZONE", "NODES", "SILENT", "UNHEARD", "VERDICT", "CAUSE"}, rows)
}

func (e *Explanation) writeDependants(out *printer.Output) {
	rows := make([]printer.Row, 0, len(e.Dependants))
	for _, d := range e.Dependants {
		replicas := ""
		if d.Replicas != nil {
			replicas = number(*d.Replicas)
		}
		row := printer.Row{Cells: []string{d.Ref.Kind + "/" + d.Ref.Name, number(d.Level), replicas, d.Step, d.Next}}
		if d.Step != "" {
			row.Notes = append(row.Notes, "replicas before: "+number(d.Before))
		}
		if len(d.WaitsFor) > 0 {
			names := make([]string, len(d.WaitsFor))
			for i, ref := range d.WaitsFor {
				names[i] = ref.Kind + "/" + ref.Name
			}
			row.Notes = append(row.Notes, "waits for "+strings.Join(names, ", "))
		}
		if d.Note != "" {
			row.Notes = append(row.Notes, d.Note)
		}
		rows = append(rows, row)
	}
	printer.WriteTable(out, []string{"DEPENDANT", "LEVEL", "REPLICAS", "STEP", "NEXT"}, rows)
}

func number(n int32) string { return strconv.Itoa(int(n)) }
