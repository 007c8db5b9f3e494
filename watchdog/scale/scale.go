// Package scale scales the dependants of a cluster down, and those that it has scaled down up again, level by level.
//
// A dependant carries what is needed to scale it up again: its replicas, in an annotation that is written before they are set to 0. The Journal says
// beside that what is being done, so that the next leader goes on where this one has stopped.
package scale

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/watchdog/config"
)

// Annotations of dependants. They are those of the Dependency Watchdog, so that whatever heeds them goes on to do so.
const (
	// AnnotationReplicas has the replicas that a dependant had. AnnotationProtected says that it is scaled down, and must not be scaled up by others.
	AnnotationReplicas  = "dependency-watchdog.gardener.cloud/replicas"
	AnnotationProtected = "dependency-watchdog.gardener.cloud/meltdown-protection-active"
	// AnnotationIgnore has a dependant never be scaled, if it is true.
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
	// Kept: another client has set replicas while the dependant was scaled down. It is left alone until the nodes are seen again.
	Kept = "Kept"
)

// Result of an Action.
type Result string

// The results. Nothing is reported of a dependant with which there is nothing to do.
const (
	Done    Result = "success"
	Failed  Result = "error"
	Was     Result = "kept"    // another client has set its replicas
	Ignored Result = "ignored" // by AnnotationIgnore
	DryRun  Result = "dry-run"
)

// Action is what was done with a dependant.
type Action struct {
	Ref       v1alpha1.DependantRef
	Direction Direction
	Result    Result
	// Replicas that it had before it was scaled down, or that it has now.
	Replicas int32
	// Err is why it has failed.
	Err error
}

// Object is what is read of a dependant.
type Object struct {
	// Version is its resourceVersion.
	Version     string
	Annotations map[string]string
	// Replicas are those that it is to have, Running those that it has.
	Replicas, Running int32
}

// Objects of the namespace with the dependants. *Client implements it.
type Objects interface {
	// Get returns ErrGone if there is none of that name, and ErrNoScale if its kind has no scale subresource.
	Get(ctx context.Context, ref v1alpha1.DependantRef) (Object, error)
	// Annotate sets annotations, and removes those that are nil. SetReplicas sets the replicas. Both need the version of what was read, return that of
	// what is there now, and return ErrConflict if the object has another one by now.
	Annotate(ctx context.Context, ref v1alpha1.DependantRef, version string, annotations map[string]*string) (string, error)
	SetReplicas(ctx context.Context, ref v1alpha1.DependantRef, version string, replicas int32) (string, error)
}

// Errors of Objects.
var (
	ErrGone     = errors.New("not found")
	ErrNoScale  = errors.New("its kind has no scale subresource")
	ErrConflict = errors.New("changed meanwhile")
)

// Journal keeps the steps where the next leader finds them. It is safe for concurrent use.
type Journal interface {
	// Step returns the step of a dependant, false if there is none.
	Step(ref v1alpha1.DependantRef) (v1alpha1.ScaleStep, bool)
	// Write replaces the step of a dependant, or removes it if there is nil. It fails if another leader has taken over.
	Write(ctx context.Context, ref v1alpha1.DependantRef, step *v1alpha1.ScaleStep) error
}

// Scaler scales the dependants of one cluster.
type Scaler struct {
	Objects Objects
	Journal Journal
	// Report is told what was done. It may be called by several goroutines at once.
	Report func(Action)
	// DryRun has it report what it would do, and do nothing.
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

// Run scales all dependants in a direction, those of a level at once, and returns when that is done, or ctx ends. If one of a level fails, the levels
// behind it wait for the next Run: what was done is not done twice. On the way up, only one that is scaled down has others wait: one that has its
// replicas, and not come to lose its annotations, is an error of the whole Run.
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
				if _, has := s.Journal.Step(d.Ref); direction == Up && !has && ctx.Err() == nil {
					errs[i] = nil // it was not scaled down: what is wrong with it must not keep others at 0
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

// Times of a task.
const (
	// attempts at an object that others change at the same time.
	attempts = 5
	// settleTimeout limits how long a level waits for the pods of its dependants to end, or to be made; settlePeriod is how often it looks.
	settleTimeout = 5 * time.Second
	settlePeriod  = 500 * time.Millisecond
)

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
