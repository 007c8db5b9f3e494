package status

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// Severity is the severity of a problem.
type Severity string

// Severities, the worst first.
const (
	// Critical means that calls fail, or that a mesh or the control plane is missing.
	Critical Severity = "critical"
	// Error means that something does not work, while others serve.
	Error Severity = "error"
	// Warning means that something works, but may stop working.
	Warning Severity = "warning"
	// Note is not a problem.
	Note Severity = "note"
)

// severities lists them, the worst first.
var severities = []Severity{Critical, Error, Warning, Note}

// Problem is a problem of one object, or of several objects with the same cause. Its JSON keys are stable.
type Problem struct {
	Severity Severity `json:"severity"`
	Mesh     string   `json:"mesh,omitempty"`
	// Objects are KIND/NAME, sorted.
	Objects []string `json:"objects"`
	// What is a short description.
	What string `json:"what"`
	// Since is the start, nil if unknown; for several objects the earliest.
	Since *time.Time `json:"since,omitempty"`
	// Notes say why, and who is affected.
	Notes []string `json:"notes,omitempty"`
	// Do is what to do next.
	Do string `json:"do"`

	// tier orders problems of one severity.
	tier tier
	// word describes the problem in a summary of notes, "" for none.
	word string
	// affected counts other objects that the problem affects.
	affected int
	// proxies are the names of Dataplanes that are not healthy because of the problem.
	proxies []string
}

// tier is the area of a problem.
type tier int

// Tiers, from the one on which all others depend.
const (
	ofControlPlane tier = iota
	ofMesh
	ofObjects
)

// at returns a time for JSON, nil for an unknown one.
func at(t *timestamppb.Timestamp) *time.Time { return describe.At(t) }

// group merges problems with the same cause, and sorts them by severity, then by the number of affected objects.
func group(all []Problem) []Problem {
	var groups []*Problem
	byCause := map[string]*Problem{}
	for i := range all {
		p := &all[i]
		key := strings.Join([]string{string(p.Severity), p.Mesh, kindOf(p.Objects), p.What}, "\x00")
		if first, ok := byCause[key]; ok {
			first.join(p)
			continue
		}
		byCause[key] = p
		groups = append(groups, p)
	}
	slices.SortStableFunc(groups, func(a, b *Problem) int {
		return cmp.Or(
			cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity)),
			cmp.Compare(a.tier, b.tier), cmp.Compare(b.weight(), a.weight()),
			cmp.Compare(a.Mesh, b.Mesh), slices.Compare(a.Objects, b.Objects), cmp.Compare(a.What, b.What),
		)
	})
	grouped := make([]Problem, len(groups))
	for i, p := range groups {
		grouped[i] = *p
	}
	return grouped
}

// weight counts the affected objects.
func (p *Problem) weight() int { return len(p.Objects) + p.affected }

// maxKept limits the different notes of a problem of several objects.
const maxKept = 20

// join adds another problem with the same cause.
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
