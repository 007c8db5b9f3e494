package migrate

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// writePlan writes a table for each workload.
func writePlan(w *printer.Output, p *Plan) {
	for _, workload := range p.Workloads {
		writeWorkload(w, &workload)
		w.WriteByte('\n')
	}
	for _, d := range p.Dataplanes {
		fmt.Fprintf(w, "Dataplane %s\n  %s\n\n", printer.OneLine(qualified(d.Namespace, d.Name)), printer.OneLine(d.Text))
	}
	fmt.Fprintln(w, planSummary(p))
}

func planSummary(p *Plan) string {
	return fmt.Sprintf("%s, %s, %s", printer.Plural(len(p.Workloads), "workload"), printer.Plural(p.Findings, "finding"),
		printer.Plural(p.Clashes, "clash"))
}

func qualified(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

func writeWorkload(w *printer.Output, p *WorkloadPlan) {
	fmt.Fprintln(w, printer.OneLine(heading(p)))
	onRow := map[string][]string{}
	var rest []string
	for _, f := range p.Findings {
		switch {
		case slices.ContainsFunc(p.Probes, func(probe ProbePlan) bool { return probe.Field == f.Field }):
			onRow[f.Field] = append(onRow[f.Field], fmt.Sprintf("%s: %s", f.Code, f.Text))
		case f.Field != "":
			rest = append(rest, fmt.Sprintf("%s: %s: %s", f.Code, f.Field, f.Text))
		default:
			rest = append(rest, fmt.Sprintf("%s: %s", f.Code, f.Text))
		}
	}
	var rows []printer.Row
	for _, probe := range p.Probes {
		then := probe.Then
		if then == "" {
			then = "refused"
		}
		r := printer.Row{
			Cells: []string{probe.Container, string(probe.Type), probe.Written},
		}
		if len(probe.Now) > 0 {
			r.Notes = append(r.Notes, "now:  "+strings.Join(probe.Now, " or "))
		}
		r.Notes = append(r.Notes, "then: "+then)
		if probe.Note != "" {
			r.Notes = append(r.Notes, "why:  "+probe.Note)
		}
		r.Notes = append(r.Notes, onRow[probe.Field]...)
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		w.WriteString("no probes or hooks\n")
	} else {
		printer.WriteTable(w, []string{"CONTAINER", "PROBE", "WRITTEN"}, rows)
	}
	for _, clash := range p.Clashes {
		rest = append(rest, "clash: "+clash)
	}
	for _, warning := range p.Warnings {
		rest = append(rest, "warning: "+warning)
	}
	for _, line := range rest {
		w.PaintLead("- " + printer.OneLine(line))
		w.WriteByte('\n')
	}
}

// heading returns the heading of a workload's table.
func heading(p *WorkloadPlan) string {
	to := string(p.To)
	if p.ToBy != "" {
		to += " (by " + p.ToBy + ")"
	}
	if p.VirtualPort != 0 {
		to += ", virtual port " + strconv.Itoa(int(p.VirtualPort))
	}
	switch {
	case to == "" && p.NotInjected == "":
		to = "refused"
	case to == "":
		to = "not injected: " + p.NotInjected
	case p.NotInjected != "":
		to += "; not injected: " + p.NotInjected
	}
	from := ""
	if p.FromPod != "" && p.Kind != "Pod" {
		from = ", as in pod " + p.FromPod
	}
	return fmt.Sprintf("%s %s%s: %s -> %s", p.Kind, qualified(p.Namespace, p.Name), from, writtenModes(p.Modes), to)
}

// writtenModes returns the number of pods in each mode: "sonde-unified 3, none 1".
func writtenModes(modes map[Mode]int) string {
	var words []string
	for _, mode := range Modes() {
		if n := modes[mode]; n > 0 {
			words = append(words, fmt.Sprintf("%s %d", mode, n))
		}
	}
	return cmp.Or(strings.Join(words, ", "), "no pods")
}

// writeStatus writes a table with a row for each workload.
func writeStatus(w *printer.Output, s *Status) {
	var rows []printer.Row
	for _, one := range s.Workloads {
		r := printer.Row{Cells: append([]string{one.Namespace, one.Kind + "/" + one.Name, string(one.To)}, countCells(&one.Count)...)}
		r.Notes = append(r.Notes, "modes: "+writtenModes(one.Modes))
		if one.Problem != "" {
			r.Notes = append(r.Notes, "refused: "+one.Problem)
		}
		if len(one.Roll) > 0 {
			r.Notes = append(r.Notes, "to roll: "+printer.FirstFew(one.Roll, ", "))
		}
		rows = append(rows, r)
	}
	rows = append(rows, printer.Row{
		Cells: append([]string{"", "all", ""}, countCells(&s.Total)...),
		Notes: []string{"modes: " + writtenModes(s.Total.Modes)},
	})
	printer.WriteTable(w, []string{"NAMESPACE", "WORKLOAD", "TO", "READY", "RESTARTS", "TO-ROLL"}, rows)
}

func countCells(c *Count) []string {
	return []string{fmt.Sprintf("%d/%d", c.Ready, c.Pods), strconv.Itoa(c.Restarts), strconv.Itoa(c.ToRoll)}
}

func statusSummary(s *Status) string {
	text := fmt.Sprintf("%d of %s still to roll", s.Total.ToRoll, printer.Plural(s.Total.Pods, "pod"))
	if s.Total.Refused > 0 {
		text += fmt.Sprintf(", %s whose new pods the webhook rejects", printer.Plural(s.Total.Refused, "workload"))
	}
	return text
}
