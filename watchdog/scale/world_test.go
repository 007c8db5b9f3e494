package scale

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/watchdog/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world has dependants, and the steps of all leaders.
type world struct {
	mu      sync.Mutex
	objects map[string]*Object // by name
	steps   map[string]v1alpha1.ScaleStep
	version int
	noScale map[string]bool
	// before is called before each write, with its description and mu held. Its error fails the write. after is called
	// after the write.
	before, after func(what string) error
	log           []string // completed writes, and actions
	running       bool     // pods follow their replicas at once
}

func newWorld(replicas map[string]int32) *world {
	w := &world{objects: map[string]*Object{}, steps: map[string]v1alpha1.ScaleStep{}, running: true}
	for name, n := range replicas {
		w.objects[name] = &Object{Version: "0", Replicas: n, Running: n, Annotations: map[string]string{}}
	}
	return w
}

func (w *world) Get(ctx context.Context, ref v1alpha1.DependantRef) (Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.objects[ref.Name]
	switch {
	case ctx.Err() != nil:
		return Object{}, ctx.Err()
	case o == nil:
		return Object{}, ErrGone
	case w.noScale[ref.Name]:
		return Object{}, ErrNoScale
	}
	read := *o
	read.Annotations = maps.Clone(o.Annotations)
	return read, nil
}

// write performs one write, unless it is stopped.
func (w *world) write(what string, do func()) error {
	if w.before != nil {
		if err := w.before(what); err != nil {
			return err
		}
	}
	do()
	w.log = append(w.log, what)
	if w.after != nil {
		return w.after(what)
	}
	return nil
}

func (w *world) change(ref v1alpha1.DependantRef, version, what string, do func(*Object)) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.objects[ref.Name]
	if o == nil {
		return "", ErrGone
	}
	if o.Version != version {
		return "", ErrConflict
	}
	var written string
	err := w.write(what+" "+ref.Name, func() {
		w.set(o, do)
		written = o.Version
	})
	return written, err
}

// set changes an object.
func (w *world) set(o *Object, do func(*Object)) {
	do(o)
	w.version++
	o.Version = strconv.Itoa(w.version)
	if w.running {
		o.Running = o.Replicas
	}
}

func (w *world) Annotate(_ context.Context, ref v1alpha1.DependantRef, version string, annotations map[string]*string) (string, error) {
	return w.change(ref, version, "annotate", func(o *Object) {
		for key, value := range annotations {
			if value == nil {
				delete(o.Annotations, key)
			} else {
				o.Annotations[key] = *value
			}
		}
	})
}

func (w *world) SetReplicas(_ context.Context, ref v1alpha1.DependantRef, version string, replicas int32) (string, error) {
	return w.change(ref, version, fmt.Sprint("set ", replicas), func(o *Object) { o.Replicas = replicas })
}

func (w *world) Step(ref v1alpha1.DependantRef) (v1alpha1.ScaleStep, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	step, ok := w.steps[ref.Name]
	return step, ok
}

func (w *world) Write(_ context.Context, ref v1alpha1.DependantRef, step *v1alpha1.ScaleStep) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if step == nil {
		return w.write("forget "+ref.Name, func() { delete(w.steps, ref.Name) })
	}
	return w.write(step.State+" "+ref.Name, func() { w.steps[ref.Name] = *step })
}

// scaler returns a Scaler that logs its actions.
func (w *world) scaler() *Scaler {
	return &Scaler{Objects: w, Journal: w, Report: func(a Action) {
		w.mu.Lock()
		defer w.mu.Unlock()
		text := fmt.Sprintf("%s %s: %s %d", a.Direction, a.Ref.Name, a.Result, a.Replicas)
		if a.Err != nil {
			text += ": " + a.Err.Error()
		}
		w.log = append(w.log, text)
	}}
}

// taken returns the log, and empties it.
func (w *world) taken() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	log := w.log
	w.log = nil
	return log
}

// described formats an object: its replicas and annotations.
func (w *world) described(name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.objects[name]
	parts := []string{strconv.Itoa(int(o.Replicas))}
	for _, key := range slices.Sorted(maps.Keys(o.Annotations)) {
		_, short, _ := strings.Cut(key, "/")
		parts = append(parts, short+"="+o.Annotations[key])
	}
	return strings.Join(parts, " ")
}

// operator changes an object like another client.
func (w *world) operator(name string, do func(*Object)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set(w.objects[name], do)
}

// dependant returns a dependant with levels for both directions.
func dependant(name string, up, down int32) config.Dependant {
	return config.Dependant{
		Ref: v1alpha1.DependantRef{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
		Up:  config.Scaling{Level: up, Timeout: config.DefaultScaleTimeout}, Down: config.Scaling{Level: down, Timeout: config.DefaultScaleTimeout},
	}
}

// example is the Dependency Watchdog's example.
func example() []config.Dependant {
	return []config.Dependant{dependant("kcm", 0, 1), dependant("mcm", 1, 0), dependant("ca", 2, 0)}
}

var errKilled = errors.New("killed")
