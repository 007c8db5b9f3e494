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

// task is one dependant that is scaled.
type task struct {
	*Scaler
	direction Direction
	dependant config.Dependant
	scaling   config.Scaling
	delayed   bool // the delay is over
}

// run scales the dependant, unless there is nothing to do.
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

// attempt looks at the dependant, and does what is to be done. It asks to be called again once it has waited for the delay, since the dependant may
// be another one by then.
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

// gone returns err, unless there may be no such dependant. On the way up one that is missing keeps no other one down.
func (t *task) gone(ctx context.Context, err error) error {
	if t.direction == Down && !t.dependant.Optional {
		return err
	}
	if t.DryRun {
		return nil
	}
	return t.forget(ctx)
}

// action is what is to be done with a dependant.
type action struct {
	what    Next
	delayed bool // after the delay
	do      func(context.Context, Object) error
}

// plan returns what is to be done, nil for nothing.
func (t *task) plan(o Object) *action {
	_, protected := o.Annotations[AnnotationProtected]
	step, has := t.Journal.Step(t.dependant.Ref)
	if ignored(o) {
		if protected || has {
			return &action{what: Release, do: t.release}
		}
		return nil
	}
	if t.direction == Up {
		return t.planUp(o, protected, has)
	}
	return t.planDown(o, protected, step.State)
}

// ignored reports whether a dependant is never to be scaled.
func ignored(o Object) bool {
	ignore, err := strconv.ParseBool(o.Annotations[AnnotationIgnore])
	return err == nil && ignore
}

// planUp is plan on the way up. has says that there is a step.
func (t *task) planUp(o Object, protected, has bool) *action {
	switch {
	case protected && o.Replicas == 0:
		return &action{what: ScaleUp, delayed: true, do: t.raise}
	case protected || has: // another client has set its replicas, or has made them its own by removing the annotation
		return &action{what: Keep, do: t.keep}
	}
	return nil
}

// planDown is plan on the way down. state is that of the step, "" without one.
func (t *task) planDown(o Object, protected bool, state string) *action {
	switch {
	case state == Kept:
		return nil
	case state == Lowered && o.Replicas > 0:
		return &action{what: Keep, do: t.leave}
	case state == Lowering && o.Replicas == 0 && protected: // the leader before this one has not come to write that it is done
		return &action{what: Note, do: t.lowered}
	case o.Replicas > 0:
		return &action{what: ScaleDown, delayed: true, do: t.lower}
	}
	return nil
}

// lower scales down. The replicas are in the annotation, and the step in the journal, before they are set.
func (t *task) lower(ctx context.Context, o Object) error {
	if err := t.write(ctx, Lowering, o.Replicas); err != nil {
		return err
	}
	replicas, protected := strconv.Itoa(int(o.Replicas)), ""
	version, err := t.Objects.Annotate(ctx, t.dependant.Ref, o.Version, map[string]*string{AnnotationReplicas: &replicas, AnnotationProtected: &protected})
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

// lowered writes what an earlier leader has done.
func (t *task) lowered(ctx context.Context, _ Object) error {
	step, _ := t.Journal.Step(t.dependant.Ref)
	if err := t.write(ctx, Lowered, step.Replicas); err != nil {
		return err
	}
	t.report(Done, step.Replicas, nil)
	return nil
}

// leave leaves a dependant to another client, which has scaled it up while the nodes are lost.
func (t *task) leave(ctx context.Context, o Object) error {
	if err := t.write(ctx, Kept, o.Replicas); err != nil {
		return err
	}
	t.report(Was, o.Replicas, nil)
	return nil
}

// raise scales up. The annotations go after that: without them no later run would know that it is to be scaled up.
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
	if err == nil { // otherwise keep reports it
		t.report(Done, replicas, nil)
	}
	return errors.Join(err, t.settle(ctx, func(o Object) bool { return o.Running > 0 }))
}

// replicas returns how many a dependant had: as its annotation says, else as the journal says, else one.
func (t *task) replicas(o Object) int32 {
	if n, err := strconv.ParseInt(o.Annotations[AnnotationReplicas], 10, 32); err == nil && n > 0 {
		return int32(n)
	}
	if step, has := t.Journal.Step(t.dependant.Ref); has && step.Replicas > 0 {
		return step.Replicas
	}
	return 1
}

// keep leaves the replicas as they are, and removes the annotations if they are there. Those of a dependant that a leader has scaled up, and not
// come to remove them, go the same way.
func (t *task) keep(ctx context.Context, o Object) error {
	step, has := t.Journal.Step(t.dependant.Ref)
	if err := t.unmark(ctx, o.Version); err != nil {
		return err
	}
	switch same := has && step.Replicas == o.Replicas; {
	case same && step.State == Raising:
		t.report(Done, o.Replicas, nil)
	case same && step.State == Lowering: // it was never scaled down
	default:
		t.report(Was, o.Replicas, nil)
	}
	return nil
}

// release leaves a dependant that is to be ignored to its operator. As the Dependency Watchdog does, it removes the annotation that keeps others
// from scaling it.
func (t *task) release(ctx context.Context, o Object) error {
	if _, protected := o.Annotations[AnnotationProtected]; protected {
		if _, err := t.Objects.Annotate(ctx, t.dependant.Ref, o.Version, map[string]*string{AnnotationProtected: nil}); err != nil {
			return err
		}
	}
	if err := t.forget(ctx); err != nil {
		return err
	}
	t.report(Ignored, o.Replicas, nil)
	return nil
}

// errMarked says that a dependant has its replicas, and still its annotations. The step stays, so that the next run removes them.
var errMarked = errors.New("annotations are not removed")

// unmark removes both annotations, and the step.
func (t *task) unmark(ctx context.Context, version string) error {
	_, err := t.Objects.Annotate(ctx, t.dependant.Ref, version, map[string]*string{AnnotationReplicas: nil, AnnotationProtected: nil})
	if errors.Is(err, ErrConflict) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errMarked, err)
	}
	return t.forget(ctx)
}

func (t *task) write(ctx context.Context, state string, replicas int32) error {
	return t.Journal.Write(ctx, t.dependant.Ref, &v1alpha1.ScaleStep{Ref: t.dependant.Ref, State: state, Replicas: replicas, Since: metav1.Now()})
}

func (t *task) forget(ctx context.Context) error {
	if _, has := t.Journal.Step(t.dependant.Ref); !has {
		return nil
	}
	return t.Journal.Write(ctx, t.dependant.Ref, nil)
}

// settle waits for the pods of the dependant, so that the next level does not act beside it. It does not wait for long: how long pods take to end is
// not known, and those of the next level go on meanwhile.
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
