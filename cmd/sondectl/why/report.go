package why

import (
	"bytes"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// State is how a pod is, in one word.
type State string

// States of a pod. NoTraffic is that of one that is Ready, Draining of one that gets new traffic only while no other is ready.
const (
	Ready     State = "ready"
	NotInMesh State = "not-in-mesh"
	NotReady  State = "not-ready"
	NoTraffic State = "no-traffic"
	Draining  State = "draining"
	// Terminating is that of a pod that is being deleted, whatever else holds.
	Terminating State = "terminating"
	Completed   State = "completed"
	Failed      State = "failed"
)

// Report is what is wrong with a pod. Its keys as JSON are stable.
type Report struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	State     State  `json:"state"`
	// Summary is one paragraph.
	Summary string `json:"summary"`
	// Findings in the order of a pod's life.
	Findings []Finding `json:"findings"`
	// NotAsked is what could not be asked, each with the reason.
	NotAsked []string `json:"notAsked,omitempty"`

	now time.Time
}

// Finding is one thing that is known to be wrong, or that an operator may ask about.
type Finding struct {
	// Cause is one word, of which there are few.
	Cause Cause `json:"cause"`
	// Keeps says what it keeps the pod from: from the mesh, from being ready, or from traffic; "" for nothing.
	Keeps Keeps `json:"keepsFrom,omitempty"`
	// Text is a clause without a full stop. Do is what to do about it, "" where Text says it or there is nothing.
	Text string `json:"text"`
	Do   string `json:"do,omitempty"`
	// Since is nil where it is not known.
	Since    *time.Time `json:"since,omitempty"`
	Evidence []Evidence `json:"evidence,omitempty"`
}

// Evidence is what one object says.
type Evidence struct {
	// Of is the object, and the part of it.
	Of   string     `json:"of"`
	Says string     `json:"says"`
	At   *time.Time `json:"at,omitempty"`
}

// Keeps says what a finding keeps a pod from.
type Keeps string

// What findings keep pods from, and that they end.
const (
	FromMesh    Keeps = "mesh"
	FromReady   Keeps = "ready"
	FromTraffic Keeps = "traffic"
	// FromNew is new traffic, which others are preferred for. FromPreference is that of a pod that gets it nevertheless, since no other is ready.
	FromNew        Keeps = "new-traffic"
	FromPreference Keeps = "preference"
)

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

// clock returns a time of the day for texts.
func clock(t time.Time) string { return t.UTC().Format("15:04:05Z") }

// ago says for how long, "" for an unknown time.
func (r *Report) ago(t *time.Time) string {
	if t == nil {
		return ""
	}
	return duration.HumanDuration(max(0, r.now.Sub(*t)))
}

// since returns " since 10:21:03Z (5m)", "" for an unknown time.
func (r *Report) since(t *time.Time) string {
	if t == nil {
		return ""
	}
	when := clock(*t)
	if r.now.Sub(*t) >= 24*time.Hour {
		when = t.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf(" since %s (%s)", when, r.ago(t))
}

// Write writes the paragraph, and below it each finding with its evidence.
func (r *Report) Write(b *bytes.Buffer) {
	b.WriteString(printer.OneLine(r.Summary) + "\n")
	for _, missed := range r.NotAsked {
		b.WriteString("\nNot asked: " + printer.OneLine(missed) + "\n")
	}
	for i := range r.Findings {
		f := &r.Findings[i]
		fmt.Fprintf(b, "\n%s", f.Cause)
		switch {
		case f.Since != nil && f.Keeps != "":
			fmt.Fprintf(b, " (for %s)", r.ago(f.Since))
		case f.Since != nil:
			fmt.Fprintf(b, " (%s ago)", r.ago(f.Since))
		}
		if i != r.told() { // the paragraph has said it
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
}

// told returns which finding the paragraph tells of, -1 for none.
func (r *Report) told() int {
	if i := r.first(); i >= 0 || len(r.Findings) != 1 {
		return i
	}
	return 0
}
