package scale

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/watchdog/config"
)

// task scales one dependant.
type task struct {
	*Scaler
	direction Direction
	dependant config.Dependant
	scaling   config.Scaling
	delayed   bool // the delay has passed
}

// run scales the dependant if needed.
func (t *task) run(ctx context.Context) error {
	for range attempts {
		again, err := t.attempt(ctx)
		if errors.Is(err, ErrConflict) || again && err == nil {
			continue
		}
		return t.wrap(err)
	}
	return t.wrap(ErrConflict)
}

func (t *task) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("scale %s %s: %w", t.dependant.Ref.Kind, t.dependant.Ref.Name, err)
}

// attempt reads the dependant and acts on it. After waiting for the delay it reads the dependant again, since it may
// have changed.
func (t *task) attempt(ctx context.Context) (again bool, err error) {
	limited, cancel := context.WithTimeout(ctx, t.scaling.Timeout)
	defer cancel()
	o, err := t.Objects.Get(limited, t.dependant.Ref)
	if errors.Is(err, ErrGone) {
		return false, t.gone(limited, err)
	}
	if err != nil {
		return false, err
	}
	act := t.plan(o)
	if act == nil {
		return false, nil
	}
	if act.delayed && !t.delayed && t.scaling.Delay > 0 {
		t.delayed = true
		return true, wait(ctx, t.scaling.Delay)
	}
	if t.DryRun {
		t.report(DryRun, o.Replicas, nil)
		return false, nil
	}
	return false, act.do(limited, o)
}

// gone returns err, unless the dependant may be missing: when scaling up, a missing dependant does not delay others.
func (t *task) gone(ctx context.Context, err error) error {
	if t.direction == Down && !t.dependant.Optional {
		return err
	}
	if t.DryRun {
		return nil
	}
	return t.forget(ctx)
}

// action is an action on a dependant.
type action struct {
	what    Next
	delayed bool // wait for the delay first
	do      func(context.Context, Object) error
}

// plan returns the action needed, nil for none.
func (t *task) plan(o Object) *action {
	_, protected := o.Annotations[AnnotationProtected]
	step, ok := t.Journal.Step(t.dependant.Ref)
	if ignored(o) {
		if protected || ok {
			return &action{what: Release, do: t.release}
		}
		return nil
	}
	if t.direction == Up {
		return t.planUp(o, protected, ok)
	}
	return t.planDown(o, protected, step.State)
}

// ignored reports whether a dependant must never be scaled.
func ignored(o Object) bool {
	ignore, err := strconv.ParseBool(o.Annotations[AnnotationIgnore])
	return err == nil && ignore
}

// planUp is plan for scaling up. has reports whether a step exists.
func (t *task) planUp(o Object, protected, has bool) *action {
	switch {
	case protected && o.Replicas == 0:
		return &action{what: ScaleUp, delayed: true, do: t.raise}
	case protected || has: // another client has set the replicas, or taken over by removing the annotation
		return &action{what: Keep, do: t.keep}
	}
	return nil
}

// planDown is plan for scaling down. state is the state of the step, "" without one.
func (t *task) planDown(o Object, protected bool, state string) *action {
	switch {
	case state == Kept:
		return nil
	case state == Lowered && o.Replicas > 0:
		return &action{what: Keep, do: t.leave}
	case state == Lowering && o.Replicas == 0 && protected: // the previous leader did not record the end
		return &action{what: Note, do: t.lowered}
	case o.Replicas > 0:
		return &action{what: ScaleDown, delayed: true, do: t.lower}
	}
	return nil
}

// lower scales down, after it has written the replicas to the annotation and the step to the journal.
func (t *task) lower(ctx context.Context, o Object) error {
	if err := t.write(ctx, Lowering, o.Replicas); err != nil {
		return err
	}
	replicas, protected := strconv.Itoa(int(o.Replicas)), ""
	version, err := t.Objects.Annotate(ctx, t.dependant.Ref, o.Version,
		map[string]*string{AnnotationReplicas: &replicas, AnnotationProtected: &protected})
	if err != nil {
		return err
	}
	if _, err := t.Objects.SetReplicas(ctx, t.dependant.Ref, version, 0); err != nil {
		return err
	}
	if err := t.write(ctx, Lowered, o.Replicas); err != nil {
		return err
	}
	t.report(Done, o.Replicas, nil)
	return t.settle(ctx, func(o Object) bool { return o.Running == 0 })
}

// lowered records an earlier leader's scale-down.
func (t *task) lowered(ctx context.Context, _ Object) error {
	step, _ := t.Journal.Step(t.dependant.Ref)
	if err := t.write(ctx, Lowered, step.Replicas); err != nil {
		return err
	}
	t.report(Done, step.Replicas, nil)
	return nil
}

// leave leaves a dependant to another client that scaled it up while the nodes were lost.
func (t *task) leave(ctx context.Context, o Object) error {
	if err := t.write(ctx, Kept, o.Replicas); err != nil {
		return err
	}
	t.report(Was, o.Replicas, nil)
	return nil
}

// raise scales up, and then removes the annotations. In this order, a later run still scales up if this one fails
// between the two.
func (t *task) raise(ctx context.Context, o Object) error {
	replicas := t.replicas(o)
	if err := t.write(ctx, Raising, replicas); err != nil {
		return err
	}
	version, err := t.Objects.SetReplicas(ctx, t.dependant.Ref, o.Version, replicas)
	if err != nil {
		return err
	}
	if err = t.unmark(ctx, version); err != nil && !errors.Is(err, errMarked) {
		return err
	}
	if err == nil { // otherwise keep reports the action
		t.report(Done, replicas, nil)
	}
	return errors.Join(err, t.settle(ctx, func(o Object) bool { return o.Running > 0 }))
}

// replicas returns the original replicas: from the annotation, else the journal, else one.
func (t *task) replicas(o Object) int32 {
	if n, err := strconv.ParseInt(o.Annotations[AnnotationReplicas], 10, 32); err == nil && n > 0 {
		return int32(n)
	}
	if step, ok := t.Journal.Step(t.dependant.Ref); ok && step.Replicas > 0 {
		return step.Replicas
	}
	return 1
}

// keep keeps the replicas, and removes all annotations, including annotations that a leader did not remove after
// scaling up.
func (t *task) keep(ctx context.Context, o Object) error {
	step, ok := t.Journal.Step(t.dependant.Ref)
	if err := t.unmark(ctx, o.Version); err != nil {
		return err
	}
	switch same := ok && step.Replicas == o.Replicas; {
	case same && step.State == Raising:
		t.report(Done, o.Replicas, nil)
	case same && step.State == Lowering: // the dependant was never scaled down
	default:
		t.report(Was, o.Replicas, nil)
	}
	return nil
}

// release leaves an ignored dependant to its operator. Like the Dependency Watchdog, it removes the annotation that
// prevents scaling by other controllers.
func (t *task) release(ctx context.Context, o Object) error {
	if _, protected := o.Annotations[AnnotationProtected]; protected {
		if _, err := t.Objects.Annotate(ctx, t.dependant.Ref, o.Version,
			map[string]*string{AnnotationProtected: nil}); err != nil {
			return err
		}
	}
	if err := t.forget(ctx); err != nil {
		return err
	}
	t.report(Ignored, o.Replicas, nil)
	return nil
}

// errMarked means that a dependant has its replicas, but that its annotations remain. The step remains, too, so that
// the next run removes the annotations.
var errMarked = errors.New("annotations are not removed")

// unmark removes both annotations and the step.
func (t *task) unmark(ctx context.Context, version string) error {
	_, err := t.Objects.Annotate(ctx, t.dependant.Ref, version,
		map[string]*string{AnnotationReplicas: nil, AnnotationProtected: nil})
	if errors.Is(err, ErrConflict) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errMarked, err)
	}
	return t.forget(ctx)
}

func (t *task) write(ctx context.Context, state string, replicas int32) error {
	return t.Journal.Write(ctx, t.dependant.Ref, &v1alpha1.ScaleStep{Ref: t.dependant.Ref, State: state,
		Replicas: replicas, Since: metav1.Now()})
}

func (t *task) forget(ctx context.Context) error {
	if _, ok := t.Journal.Step(t.dependant.Ref); !ok {
		return nil
	}
	return t.Journal.Write(ctx, t.dependant.Ref, nil)
}

// settle waits for the dependant's pods to start or stop before the next level is scaled. The wait is bounded, since
// pods may take arbitrarily long to end.
func (t *task) settle(ctx context.Context, settled func(Object) bool) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	look := time.NewTicker(settlePeriod)
	defer look.Stop()
	for {
		o, err := t.Objects.Get(ctx, t.dependant.Ref)
		if err == nil && settled(o) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
	}
}

func (t *task) report(result Result, replicas int32, err error) {
	t.Report(Action{Ref: t.dependant.Ref, Direction: t.direction, Result: result, Replicas: replicas, Err: err})
}
