package why

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/terminal"
)

// State is the state of a pod.
type State string

// States of a pod. NoTraffic is for a Ready pod, Draining for one that gets new traffic only while no other endpoint is
// ready.
const (
	Ready     State = "ready"
	NotInMesh State = "not-in-mesh"
	NotReady  State = "not-ready"
	NoTraffic State = "no-traffic"
	Draining  State = "draining"
	// Terminating is for a pod that is being deleted, and takes precedence over other states.
	Terminating State = "terminating"
	Completed   State = "completed"
	Failed      State = "failed"
)

// Report lists the problems of a pod. Its JSON keys are stable.
type Report struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	State     State  `json:"state"`
	// Summary is one paragraph.
	Summary string `json:"summary"`
	// Findings are in the order of a pod's life.
	Findings []Finding `json:"findings"`
	// Probes are the probes that the agent answers, nil if it has not reported them.
	Probes []describe.Probe `json:"probes,omitempty"`
	// ProbesLeftOut counts the probes that are not among them.
	ProbesLeftOut uint32 `json:"probesLeftOut,omitempty"`
	// NotAsked is what could not be read, each with the reason.
	NotAsked []string `json:"notAsked,omitempty"`

	now time.Time
}

// Finding is a problem or a note about a pod.
type Finding struct {
	// Cause is one of a fixed set of words.
	Cause Cause `json:"cause"`
	// Keeps says what the finding keeps the pod from: the mesh, readiness, or traffic; "" for nothing.
	Keeps Keeps `json:"keepsFrom,omitempty"`
	// Text is a clause without a full stop. Do is the advice, "" if Text has it.
	Text string `json:"text"`
	Do   string `json:"do,omitempty"`
	// Since is nil if unknown.
	Since    *time.Time `json:"since,omitempty"`
	Evidence []Evidence `json:"evidence,omitempty"`
}

// Evidence is the statement of one object.
type Evidence struct {
	// Of is the object and its part.
	Of   string     `json:"of"`
	Says string     `json:"says"`
	At   *time.Time `json:"at,omitempty"`
}

// Keeps says what a finding keeps a pod from.
type Keeps string

// Values of Keeps.
const (
	FromMesh    Keeps = "mesh"
	FromReady   Keeps = "ready"
	FromTraffic Keeps = "traffic"
	// FromNew means new traffic, for which the mesh prefers other endpoints. FromPreference is for a pod that still gets
	// new traffic, since no other endpoint is ready.
	FromNew        Keeps = "new-traffic"
	FromPreference Keeps = "preference"
)

var keepsColours = map[Keeps]terminal.Colour{
	FromMesh: terminal.Red, FromReady: terminal.Red, FromTraffic: terminal.Red, FromNew: terminal.Yellow,
	FromPreference: terminal.Yellow,
}

// Cause is the cause of a finding.
type Cause string

// at returns a time for JSON, nil for the zero one.
func at(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC().Truncate(time.Second)
	return &t
}

// clock formats a time of the day for texts.
func clock(t time.Time) string { return t.UTC().Format("15:04:05Z") }

// ago returns the duration since a time, "" for an unknown time.
func (r *Report) ago(t *time.Time) string {
	if t == nil {
		return ""
	}
	return duration.HumanDuration(max(0, r.now.Sub(*t)))
}

// since returns text such as " since 10:21:03Z (5m)", "" for an unknown time.
func (r *Report) since(t *time.Time) string {
	if t == nil {
		return ""
	}
	return fmt.Sprintf(" since %s (%s)", r.when(*t), r.ago(t))
}

// when formats a time of the day, with the date if that is long ago.
func (r *Report) when(t time.Time) string {
	if r.now.Sub(t) >= 24*time.Hour {
		return t.UTC().Format(time.RFC3339)
	}
	return clock(t)
}

// Write writes the paragraph, and below it each finding with its evidence.
func (r *Report) Write(b *printer.Output) {
	b.WriteString(printer.OneLine(r.Summary) + "\n")
	for _, missed := range r.NotAsked {
		b.WriteString("\nIncomplete: " + printer.OneLine(missed) + "\n")
	}
	for i := range r.Findings {
		f := &r.Findings[i]
		b.WriteByte('\n')
		b.Paint(keepsColours[f.Keeps], string(f.Cause))
		switch {
		case f.Since != nil && f.Keeps != "":
			fmt.Fprintf(b, " (for %s)", r.ago(f.Since))
		case f.Since != nil:
			fmt.Fprintf(b, " (%s ago)", r.ago(f.Since))
		}
		if i != r.told() { // already in the paragraph
			b.WriteString(": " + printer.OneLine(f.Text))
			if f.Do != "" {
				b.WriteString(". " + printer.OneLine(f.Do))
			}
		}
		b.WriteByte('\n')
		for _, e := range f.Evidence {
			b.WriteString("  " + printer.OneLine(e.Of))
			if e.At != nil {
				fmt.Fprintf(b, " (%s ago)", r.ago(e.At))
			}
			b.WriteString(": " + printer.OneLine(e.Says) + "\n")
		}
	}
	r.writeProbes(b)
}

// writeProbes writes the verdicts of all probes, and when they changed.
func (r *Report) writeProbes(b *printer.Output) {
	if len(r.Probes) == 0 && r.ProbesLeftOut == 0 {
		return
	}
	b.WriteString("\nProbes that the agent answers:\n")
	for i := range r.Probes {
		p := &r.Probes[i]
		b.WriteString("  " + printer.OneLine(p.Text(r.now)) + "\n")
		if len(p.Changes) < 2 {
			continue
		}
		changes := make([]string, len(p.Changes))
		for i, c := range p.Changes {
			changes[i] = c.Verdict + " " + r.when(c.At)
		}
		b.WriteString("    changes: " + printer.OneLine(strings.Join(changes, ", ")) + "\n")
	}
	if r.ProbesLeftOut > 0 {
		b.WriteString("  " + describe.ProbesLeftOutText(r.ProbesLeftOut) + "\n")
	}
}

// told returns the index of the finding in the paragraph, -1 without one.
func (r *Report) told() int {
	if i := r.first(); i >= 0 || len(r.Findings) != 1 {
		return i
	}
	return 0
}
