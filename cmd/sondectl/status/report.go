package status

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// Report is the verdict with its problems. Its JSON keys are stable.
type Report struct {
	OK bool `json:"ok"`
	// Summary is the verdict with counts, in one line.
	Summary string `json:"summary"`
	// Problems, the worst first, with notes.
	Problems []Problem `json:"problems"`
	Meshes   int       `json:"meshes"`
	Services int       `json:"services"`
	Proxies  int       `json:"proxies"`
	// Healthy counts proxies without a problem.
	Healthy int `json:"healthyProxies"`
	// At is the time of the control plane's answers.
	At time.Time `json:"at"`

	counts  string // number of problems by severity
	unready bool
}

func newReport(v *picture, problems []Problem) *Report {
	r := &Report{
		Problems: append([]Problem{}, problems...), Meshes: len(v.Meshes), Services: len(v.Services),
		At: v.Now.UTC().Truncate(time.Second), unready: v.Unready != nil,
	}
	ill := map[string]bool{}
	for i := range problems {
		if problems[i].Severity != Note {
			for _, id := range problems[i].proxies {
				ill[id] = true
			}
		}
	}
	for _, p := range v.Proxies {
		r.Proxies++
		if !ill[mesh.MakeID(p.GetMesh(), p.GetName())] {
			r.Healthy++
		}
	}
	r.summarise()
	return r
}

// summarise returns the line with the verdict.
func (r *Report) summarise() {
	counts := map[Severity]int{}
	for i := range r.Problems {
		counts[r.Problems[i].Severity]++
	}
	r.OK = counts[Critical]+counts[Error]+counts[Warning] == 0
	var parts []string
	for _, s := range severities {
		switch n := counts[s]; {
		case n == 0 || s == Note:
		case s == Critical:
			parts = append(parts, fmt.Sprintf("%d critical", n))
		default:
			parts = append(parts, printer.Plural(n, string(s)))
		}
	}
	r.counts = strings.Join(parts, ", ")
	what := fmt.Sprintf("%s, %s, %d of %s healthy", printer.Plural(r.Meshes, "mesh"),
		printer.Plural(r.Services, "service"), r.Healthy, printer.Plural(r.Proxies, "proxy"))
	switch {
	case r.unready:
		r.Summary = "not ok: " + r.counts
	case !r.OK:
		r.Summary = "not ok: " + r.counts + "; " + what
	default:
		r.Summary = "ok: " + strings.Join(append([]string{what}, r.noted()...), "; ")
	}
}

// noted summarises the notes, without the mesh.
func (r *Report) noted() []string {
	objects := map[string][]string{}
	var order []string
	for i := range r.Problems {
		if p := &r.Problems[i]; p.word != "" {
			if objects[p.word] == nil {
				order = append(order, p.word)
			}
			objects[p.word] = append(objects[p.word], p.Objects...)
		}
	}
	var parts []string
	for _, word := range order {
		all := Problem{Objects: objects[word]}
		parts = append(parts, all.title()+" "+word)
	}
	return parts
}

// maxShown limits the problems shown as text, maxObjects the objects of one of them, and maxNotes its notes.
const (
	maxShown   = 20
	maxObjects = 5
	maxNotes   = 4
)

// Write writes the report, as a table with the summary above, or with short only the summary.
func (r *Report) Write(out *printer.Output, f printer.Format, short bool) error {
	return printer.Write(out, f, r, func() { r.writeText(out, short) })
}

func (r *Report) writeText(out *printer.Output, short bool) {
	out.PaintLead(printer.OneLine(r.Summary))
	out.WriteByte('\n')
	if short || r.OK {
		return
	}
	out.WriteByte('\n')
	rows := make([]printer.Row, 0, maxShown)
	for i := range r.Problems[:min(len(r.Problems), maxShown)] {
		rows = append(rows, r.row(&r.Problems[i]))
	}
	printer.WriteTable(out, []string{"SEVERITY", "MESH", "OBJECT", "SINCE"}, rows)
	if n := len(r.Problems) - maxShown; n > 0 {
		fmt.Fprintf(out, "%d more problems: see -o json\n", n)
	}
}

func (r *Report) row(p *Problem) printer.Row {
	since := ""
	if p.Since != nil {
		since = printer.ShortDuration(max(0, r.At.Sub(*p.Since)))
	}
	notes := []string{p.What}
	if n := len(p.Objects); n > 1 {
		names := make([]string, 0, maxObjects)
		for _, object := range p.Objects[:min(n, maxObjects)] {
			names = append(names, strings.TrimPrefix(object, kindOf(p.Objects)+"/"))
		}
		notes = append(notes, strings.Join(names, ", ")+more(n-maxObjects))
	}
	notes = append(notes, p.Notes[:min(len(p.Notes), maxNotes)]...)
	if n := len(p.Notes) - maxNotes; n > 0 {
		notes = append(notes, fmt.Sprintf("%d more: see -o json", n))
	}
	notes = append(notes, "do: "+p.Do)
	return printer.Row{Cells: []string{string(p.Severity), p.Mesh, p.title(), since}, Notes: slices.Clip(notes)}
}

// OfProxies returns the problems that concern each proxy, the worst first.
func (r *Report) OfProxies() map[mesh.ID][]Problem {
	all := map[mesh.ID][]Problem{}
	for i := range r.Problems {
		for _, id := range r.Problems[i].proxies {
			all[id] = append(all[id], r.Problems[i])
		}
	}
	return all
}

// Err is nil if nothing is wrong, otherwise the error with the exit code.
func (r *Report) Err() error {
	switch {
	case r.unready:
		return &exit.Error{Code: exit.Unreachable, Err: errors.New(r.counts), Output: true}
	case !r.OK:
		return &exit.Error{Code: exit.Unhealthy, Err: errors.New(r.counts)}
	}
	return nil
}
