package scale

import (
	"context"
	"errors"
	"slices"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/watchdog/config"
)

// Next is the next action on a dependant.
type Next string

// Values of Next. Nothing also applies while the state of the nodes is unknown.
const (
	ScaleDown Next = "scale-down"
	ScaleUp   Next = "scale-up"
	Keep      Next = "keep"    // record that another client's replicas are kept
	Note      Next = "note"    // record the action of an earlier leader
	Release   Next = "release" // the dependant is ignored: leave it to its operator
	Nothing   Next = "nothing"
	Fail      Next = "fail" // the dependant is missing or unreadable
)

// Outlook is the expected action on a dependant.
type Outlook struct {
	Dependant config.Dependant
	// Object as read, or the error Err.
	Object Object
	Err    error
	// Step from the journal; State is "" without one.
	Step v1alpha1.ScaleStep
	Next Next
	// Before are the dependants of lower levels that must be scaled before this one.
	Before []v1alpha1.DependantRef
}

// Ignored reports whether the dependant is ignored.
func (o *Outlook) Ignored() bool { return o.Err == nil && ignored(o.Object) }

// Look returns the actions that Run would take in a direction, by the same rules and in the same order; "" means no
// direction. It changes nothing.
func Look(
	ctx context.Context, objects Objects, steps []v1alpha1.ScaleStep, direction Direction, dependants []config.Dependant,
) []Outlook {
	s := &Scaler{Objects: objects, Journal: pastSteps(steps)}
	var all []Outlook
	var before []v1alpha1.DependantRef
	for _, level := range levelsOf(direction, dependants) {
		var busy []v1alpha1.DependantRef
		for _, d := range level {
			o := s.look(ctx, direction, d)
			o.Before = slices.Clone(before)
			if o.holds(direction) {
				busy = append(busy, d.Ref)
			}
			all = append(all, o)
		}
		before = append(before, busy...)
	}
	return all
}

func (s *Scaler) look(ctx context.Context, direction Direction, d config.Dependant) Outlook {
	t := &task{Scaler: s, direction: direction, dependant: d, scaling: scalingOf(direction, d)}
	o := Outlook{Dependant: d, Next: Nothing}
	o.Step, _ = s.Journal.Step(d.Ref)
	o.Object, o.Err = s.Objects.Get(ctx, d.Ref)
	switch {
	case errors.Is(o.Err, ErrGone) && (direction != Down || d.Optional):
	case o.Err != nil:
		o.Next = Fail
	case direction == "":
	default:
		if act := t.plan(o.Object); act != nil {
			o.Next = act.what
		}
	}
	return o
}

// holds reports whether later levels wait for this dependant. When scaling up, they wait only for a dependant that is
// scaled down.
func (o *Outlook) holds(direction Direction) bool {
	return o.Next != Nothing && (o.Next != Fail || direction == Down || o.Step.State != "")
}

// pastSteps is a read-only Journal.
type pastSteps []v1alpha1.ScaleStep

// Step implements Journal.
func (p pastSteps) Step(ref v1alpha1.DependantRef) (v1alpha1.ScaleStep, bool) {
	if i := slices.IndexFunc(p, func(s v1alpha1.ScaleStep) bool { return s.Ref == ref }); i >= 0 {
		return p[i], true
	}
	return v1alpha1.ScaleStep{}, false
}

// Write implements Journal.
func (pastSteps) Write(context.Context, v1alpha1.DependantRef, *v1alpha1.ScaleStep) error {
	return errors.ErrUnsupported
}
