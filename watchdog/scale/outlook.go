package scale

import (
	"context"
	"errors"
	"slices"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/watchdog/config"
)

// Next is what would be done with a dependant.
type Next string

// What would be done. Nothing is also what holds while nothing is known of the nodes.
const (
	ScaleDown Next = "scale-down"
	ScaleUp   Next = "scale-up"
	Keep      Next = "keep"    // the replicas that another client has set are left, and that is noted
	Note      Next = "note"    // what an earlier leader has done is noted
	Release   Next = "release" // it is to be ignored, and left to its operator
	Nothing   Next = "nothing"
	Fail      Next = "fail" // it cannot be read, or is missing
)

// Outlook is what is to be expected of a dependant.
type Outlook struct {
	Dependant config.Dependant
	// Object is what was read of it, unless Err says why it was not.
	Object Object
	Err    error
	// Step is that of the journal, its State "" without one.
	Step v1alpha1.ScaleStep
	Next Next
	// Before are dependants of lower levels with which something is to be done first, or for which this one waits as they fail.
	Before []v1alpha1.DependantRef
}

// Ignored reports whether the dependant is to be ignored.
func (o *Outlook) Ignored() bool { return o.Err == nil && ignored(o.Object) }

// Look returns what a Run in a direction would do, by the same rules, in the order in which it would; "" is the direction of none. It changes nothing.
func Look(ctx context.Context, objects Objects, steps []v1alpha1.ScaleStep, direction Direction, dependants []config.Dependant) []Outlook {
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

// holds reports whether the levels behind the dependant's wait for it. On the way up one that was not scaled down holds no other.
func (o *Outlook) holds(direction Direction) bool {
	return o.Next != Nothing && (o.Next != Fail || direction == Down || o.Step.State != "")
}

// pastSteps is the Journal of who only looks.
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
