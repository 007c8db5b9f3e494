package status

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// Severity is how bad a problem is.
type Severity string

// Severities, the worst first.
const (
	// Critical: calls fail, or a mesh or the control plane is not there.
	Critical Severity = "critical"
	// Error: something does not work, and others serve.
	Error Severity = "error"
	// Warning: it works, and may not go on to.
	Warning Severity = "warning"
	// Note: nothing is known to be wrong.
	Note Severity = "note"
)

// severities has them, the worst first.
var severities = []Severity{Critical, Error, Warning, Note}

// Problem is one thing that is wrong with one object, or with several for one cause. Its keys as JSON are stable.
type Problem struct {
	Severity Severity `json:"severity"`
	Mesh     string   `json:"mesh,omitempty"`
	// Objects, as KIND/NAME. Sorted.
	Objects []string `json:"objects"`
	// What is wrong, in a few words.
	What string `json:"what"`
	// Since when, nil where it is not known. Of several objects it is the earliest.
	Since *time.Time `json:"since,omitempty"`
	// Notes say why, and who is affected.
	Notes []string `json:"notes,omitempty"`
	// Do is the next step.
	Do string `json:"do"`

	// tier orders problems of one severity.
	tier tier
	// word is the problem in a summary of notes, "" for none.
	word string
	// affected is how many others it affects.
	affected int
	// proxies are the names of the Dataplanes that are not well for it.
	proxies []string
}

// tier is what a problem is about.
type tier int

// Tiers, of which the first depends on none of the others.
const (
	ofControlPlane tier = iota
	ofMesh
	ofObjects
)

// at returns a time for JSON, nil for an unknown one.
func at(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	when := t.AsTime().Truncate(time.Second)
	return &when
}

// group makes one problem of all that have the same cause, and sorts them: the worst first, then those that affect most.
func group(all []Problem) []Problem {
	var groups []*Problem
	byCause := map[string]*Problem{}
	for i := range all {
		p := &all[i]
		key := strings.Join([]string{string(p.Severity), p.Mesh, kindOf(p.Objects), p.What}, "\x00")
		if first, is := byCause[key]; is {
			first.join(p)
			continue
		}
		byCause[key] = p
		groups = append(groups, p)
	}
	slices.SortStableFunc(groups, func(a, b *Problem) int {
		return cmp.Or(cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity)), cmp.Compare(a.tier, b.tier), cmp.Compare(b.weight(), a.weight()),
			cmp.Compare(a.Mesh, b.Mesh), slices.Compare(a.Objects, b.Objects), cmp.Compare(a.What, b.What))
	})
	grouped := make([]Problem, len(groups))
	for i, p := range groups {
		grouped[i] = *p
	}
	return grouped
}

// weight is how much is affected.
func (p *Problem) weight() int { return len(p.Objects) + p.affected }

// maxKept is how many different notes a problem of several objects has.
const maxKept = 20

// join adds another problem of the same cause.
func (p *Problem) join(other *Problem) {
	p.Objects = append(p.Objects, other.Objects...)
	slices.Sort(p.Objects)
	p.Objects = slices.Compact(p.Objects)
	p.proxies, p.affected = append(p.proxies, other.proxies...), p.affected+other.affected
	if other.Since != nil && (p.Since == nil || other.Since.Before(*p.Since)) {
		p.Since = other.Since
	}
	for _, note := range other.Notes {
		if len(p.Notes) < maxKept && !slices.Contains(p.Notes, note) {
			p.Notes = append(p.Notes, note)
		}
	}
}

// kindOf returns the kind of the first object.
func kindOf(objects []string) string {
	if len(objects) == 0 {
		return ""
	}
	kind, _, _ := strings.Cut(objects[0], "/")
	return kind
}

// title names the objects in a few words.
func (p *Problem) title() string {
	switch len(p.Objects) {
	case 0:
		return ""
	case 1:
		return p.Objects[0]
	}
	return printer.Plural(len(p.Objects), kindOf(p.Objects))
}
