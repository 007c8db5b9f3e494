package scale

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/sonde-mesh/sonde/watchdog/config"
)

// TestSchedules kills leaders before and after any of their writes, and has others change dependants meanwhile. In the end all have the replicas that
// they are to have, and nothing is left behind.
func TestSchedules(t *testing.T) {
	for seed := range uint64(10_000) {
		synctest.Test(t, func(t *testing.T) {
			if err := play(t, rand.New(rand.NewPCG(seed, 29))); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		})
	}
}

func play(t *testing.T, r *rand.Rand) error {
	t.Helper()
	w := newWorld(map[string]int32{"kcm": 1 + r.Int32N(3), "mcm": 1, "ca": r.Int32N(2)})
	dependants := []config.Dependant{dependant("kcm", r.Int32N(3), r.Int32N(3)), dependant("mcm", r.Int32N(3), r.Int32N(3)), dependant("ca", r.Int32N(3), r.Int32N(3))}
	want := map[string]int32{}
	for name, o := range w.objects {
		want[name] = o.Replicas
	}
	others := func() { // what an operator, or an autoscaler, sets is what a dependant is to have
		name := slices.Sorted(maps.Keys(w.objects))[r.IntN(3)]
		n := 1 + r.Int32N(9)
		want[name] = n
		w.set(w.objects[name], func(o *Object) { o.Replicas = n })
	}
	dead := false
	disturb := func(string) error {
		switch {
		case dead:
			return errKilled
		case r.IntN(12) == 0:
			dead = true
			return errKilled
		case r.IntN(12) == 0:
			others()
		}
		return nil
	}
	for range 4 + r.IntN(8) {
		dead = false
		w.before = func(what string) error {
			versions := map[string]string{}
			for name, o := range w.objects {
				versions[name] = o.Version
			}
			if err := disturb(what); err != nil {
				return err
			}
			for name, o := range w.objects { // what has changed meanwhile has another version than the writer has read
				if o.Version != versions[name] && what[max(0, len(what)-len(name)):] == name && !slices.Contains([]string{"L", "R", "K", "f"}, what[:1]) {
					return ErrConflict
				}
			}
			return nil
		}
		w.after = disturb
		_ = w.scaler().Run(t.Context(), []Direction{Down, Up}[r.IntN(2)], dependants)
	}
	w.before, w.after = nil, nil
	if err := w.scaler().Run(t.Context(), Up, dependants); err != nil {
		return err
	}
	for name, n := range want {
		if got := w.described(name); got != fmt.Sprint(n) {
			return fmt.Errorf("%s is %q, want %d\n%q", name, got, n, w.log)
		}
	}
	if len(w.steps) > 0 {
		return fmt.Errorf("steps are left: %v", w.steps)
	}
	return nil
}
