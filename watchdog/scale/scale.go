// Package scale scales the dependants of a cluster down and back up, level by level.
//
// An annotation of a dependant stores its replicas before they are set to 0. The Journal also records each step, so
// that the next leader can continue.
package scale

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/watchdog/config"
)

// Annotations of dependants. They are the same as the Dependency Watchdog's, so that other tools that respect these
// keep working.
const (
	// AnnotationReplicas stores a dependant's original replicas. AnnotationProtected marks it as scaled down, so that
	// other controllers do not scale it up.
	AnnotationReplicas  = "dependency-watchdog.gardener.cloud/replicas"
	AnnotationProtected = "dependency-watchdog.gardener.cloud/meltdown-protection-active"
	// AnnotationIgnore set to true prevents scaling of a dependant.
	AnnotationIgnore = "dependency-watchdog.gardener.cloud/ignore-scaling"
)

// Direction in which dependants are scaled.
type Direction string

// The directions.
const (
	Down Direction = "scale-down"
	Up   Direction = "scale-up"
)

// States of a step in the Journal.
const (
	// Lowering and Raising are written before the replicas are set, Lowered after they are 0.
	Lowering = "Lowering"
	Lowered  = "Lowered"
	Raising  = "Raising"
	// Kept means that another client set replicas while the dependant was scaled down. The watchdog does not scale it
	// until the nodes are seen again.
	Kept = "Kept"
)

// Result of an Action.
type Result string

// Results. A dependant that needs no action is not reported.
const (
	Done    Result = "success"
	Failed  Result = "error"
	Was     Result = "kept"    // another client has set the replicas
	Ignored Result = "ignored" // because of AnnotationIgnore
	DryRun  Result = "dry-run"
)

// Action is a completed action on a dependant.
type Action struct {
	Ref       v1alpha1.DependantRef
	Direction Direction
	Result    Result
	// Replicas before the scale-down, or the current ones.
	Replicas int32
	// Err is the error of a failed action.
	Err error
}

// Object is a dependant read from the API server.
type Object struct {
	// Version is its resourceVersion.
	Version     string
	Annotations map[string]string
	// Replicas are the desired replicas, Running the current ones.
	Replicas, Running int32
}

// Objects reads and changes the dependants of a namespace. *Client implements it.
type Objects interface {
	// Get returns ErrGone if the object does not exist, and ErrNoScale if its kind has no scale subresource.
	Get(ctx context.Context, ref v1alpha1.DependantRef) (Object, error)
	// Annotate sets annotations, and removes annotations whose value is nil. SetReplicas sets the replicas. Both take
	// the version that was read, return the new version, and return ErrConflict if the object has changed.
	Annotate(
		ctx context.Context, ref v1alpha1.DependantRef, version string, annotations map[string]*string,
	) (string, error)
	SetReplicas(ctx context.Context, ref v1alpha1.DependantRef, version string, replicas int32) (string, error)
}

// Errors of Objects.
var (
	ErrGone     = errors.New("not found")
	ErrNoScale  = errors.New("its kind has no scale subresource")
	ErrConflict = errors.New("changed meanwhile")
)

// Journal stores the steps for the next leader. It is safe for concurrent use.
type Journal interface {
	// Step returns the step of a dependant, false if it has none.
	Step(ref v1alpha1.DependantRef) (v1alpha1.ScaleStep, bool)
	// Write replaces the step of a dependant, or removes it if nil. It fails if another leader has taken over.
	Write(ctx context.Context, ref v1alpha1.DependantRef, step *v1alpha1.ScaleStep) error
}

// Scaler scales the dependants of one cluster.
type Scaler struct {
	Objects Objects
	Journal Journal
	// Report is called for each action, possibly by several goroutines at once.
	Report func(Action)
	// DryRun only reports actions.
	DryRun bool
}

// levelsOf returns the dependants by level, the lowest first.
func levelsOf(direction Direction, dependants []config.Dependant) [][]config.Dependant {
	sorted := slices.Clone(dependants)
	level := func(d config.Dependant) int32 { return scalingOf(direction, d).Level }
	slices.SortStableFunc(sorted, func(a, b config.Dependant) int { return cmp.Compare(level(a), level(b)) })
	var levels [][]config.Dependant
	for i, d := range sorted {
		if i == 0 || level(d) != level(sorted[i-1]) {
			levels = append(levels, nil)
		}
		levels[len(levels)-1] = append(levels[len(levels)-1], d)
	}
	return levels
}

func scalingOf(direction Direction, d config.Dependant) config.Scaling {
	if direction == Down {
		return d.Down
	}
	return d.Up
}

// Run scales all dependants in a direction, level by level, and returns at the end or when ctx ends. If a dependant
// fails, later levels wait for the next Run, which does not repeat completed actions. When scaling up, later levels
// wait only for a dependant that is still scaled down. If a dependant has its replicas, but its annotations remain, Run
// continues, and returns an error at its end.
func (s *Scaler) Run(ctx context.Context, direction Direction, dependants []config.Dependant) error {
	var marked []error
	for _, level := range levelsOf(direction, dependants) {
		errs := make([]error, len(level))
		var running sync.WaitGroup
		for i, d := range level {
			running.Go(func() {
				t := &task{Scaler: s, direction: direction, dependant: d, scaling: scalingOf(direction, d)}
				if errs[i] = t.run(ctx); errs[i] != nil && ctx.Err() == nil {
					t.report(Failed, 0, errs[i])
				}
				if _, ok := s.Journal.Step(d.Ref); direction == Up && !ok && ctx.Err() == nil {
					errs[i] = nil // this dependant was not scaled down: its error must not keep others at 0
				}
			})
		}
		running.Wait()
		for i, err := range errs {
			if errors.Is(err, errMarked) && ctx.Err() == nil {
				marked, errs[i] = append(marked, err), nil
			}
		}
		if err := errors.Join(errs...); err != nil {
			return errors.Join(append(marked, err)...)
		}
	}
	return errors.Join(marked...)
}

// Timing of a task.
const (
	// attempts on an object that other clients change at the same time.
	attempts = 5
	// settleTimeout limits how long a level waits for the pods of its dependants to stop or start; settlePeriod is the
	// interval of checks.
	settleTimeout = 5 * time.Second
	settlePeriod  = 500 * time.Millisecond
)

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	return run.Sleep(ctx, d)
}
