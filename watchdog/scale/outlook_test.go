package scale

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
)

// For dependants in any state, Look returns the actions that Run then takes, and changes nothing.
func TestLookIsWhatRunDoes(t *testing.T) {
	for seed := range uint64(500) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			w, direction := anyWorld(random), Down
			if random.IntN(2) == 0 {
				direction = Up
			}
			steps := make([]v1alpha1.ScaleStep, 0, len(w.steps))
			for _, d := range example() {
				if step, ok := w.steps[d.Ref.Name]; ok {
					steps = append(steps, step)
				}
			}
			looks := Look(t.Context(), w, steps, direction, example())
			if log := w.taken(); len(log) > 0 {
				t.Fatalf("seed %d: looking has done %q", seed, log)
			}
			_ = w.scaler().Run(t.Context(), direction, example()) // failures are in the log
			log := w.taken()
			checkLooks(t, fmt.Sprintf("seed %d, %s: %q", seed, direction, log), looks, direction, log, len(steps) > 0)
		})
	}
}

// checkLooks compares expected with actual actions. Run may remove steps without an action.
func checkLooks(t *testing.T, scene string, looks []Outlook, direction Direction, log []string, steps bool) {
	t.Helper()
	stopped := false
	for _, o := range looks {
		name := o.Dependant.Ref.Name
		did := slices.ContainsFunc(log, func(line string) bool { return strings.Contains(line, " "+name) })
		succeeded := slices.ContainsFunc(log, func(line string) bool { return strings.HasPrefix(line, fmt.Sprintf("%s %s: success", o.Next, name)) })
		stopped = stopped || o.Next == Fail && o.holds(direction)
		switch scales := o.Next == ScaleDown || o.Next == ScaleUp; {
		case o.Next == Nothing && !steps && did:
			t.Errorf("%s: nothing was to be done with %s", scene, name)
		case o.Next != Nothing && !did && len(o.Before) == 0:
			t.Errorf("%s: %s of %s was to be done", scene, o.Next, name)
		case scales && !stopped && !succeeded:
			t.Errorf("%s: %s of %s was to be done", scene, o.Next, name)
		}
	}
}

// anyWorld has dependants that may be scaled down, scaled by others, ignored or gone, with steps or without.
func anyWorld(random *rand.Rand) *world {
	w := newWorld(map[string]int32{"kcm": 2, "mcm": 1, "ca": 1})
	for _, name := range []string{"kcm", "mcm", "ca"} {
		o := w.objects[name]
		if random.IntN(2) == 0 {
			o.Replicas = int32(random.IntN(3))
			o.Running = o.Replicas
		}
		if random.IntN(2) == 0 {
			o.Annotations[AnnotationProtected], o.Annotations[AnnotationReplicas] = "", "2"
		}
		if random.IntN(5) == 0 {
			o.Annotations[AnnotationIgnore] = "true"
		}
		if random.IntN(2) == 0 {
			state := []string{Lowering, Lowered, Raising, Kept}[random.IntN(4)]
			w.steps[name] = v1alpha1.ScaleStep{Ref: dependant(name, 0, 0).Ref, State: state, Replicas: 2}
		}
		if random.IntN(6) == 0 {
			delete(w.objects, name)
		}
	}
	return w
}
