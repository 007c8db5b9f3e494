package scale

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/watchdog/config"
)

// TestSchedules kills leaders before and after any write, while other clients change dependants. In the end all have
// the expected replicas, without remaining annotations and steps.
func TestSchedules(t *testing.T) {
	for seed := range uint64(slowtest.Rounds(10_000, 500)) {
		synctest.Test(t, func(t *testing.T) {
			if err := play(t, rand.New(rand.NewPCG(seed, 29))); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		})
	}
}

// schedule is a running simulation.
type schedule struct {
	*world
	r    *rand.Rand
	want map[string]int32 // the expected replicas of dependants
	dead bool             // the leader was killed
}

func play(t *testing.T, r *rand.Rand) error {
	t.Helper()
	s := &schedule{world: newWorld(map[string]int32{"kcm": 1 + r.Int32N(3), "mcm": 1, "ca": r.Int32N(2)}), r: r, want: map[string]int32{}}
	var dependants []config.Dependant
	for _, name := range []string{"kcm", "mcm", "ca"} {
		dependants = append(dependants, dependant(name, r.Int32N(3), r.Int32N(3)))
		s.want[name] = s.objects[name].Replicas
	}
	for range 4 + r.IntN(8) {
		s.dead = false
		s.before, s.after = s.begin, s.disturb
		_ = s.scaler().Run(t.Context(), []Direction{Down, Up}[r.IntN(2)], dependants)
	}
	s.before, s.after = nil, nil
	if err := s.scaler().Run(t.Context(), Up, dependants); err != nil {
		return err
	}
	for name, n := range s.want {
		if got := s.described(name); got != strconv.Itoa(int(n)) {
			return fmt.Errorf("%s is %q, want %d\n%q", name, got, n, s.log)
		}
	}
	if len(s.steps) > 0 {
		return fmt.Errorf("steps are left: %v", s.steps)
	}
	return nil
}

// disturb kills the leader, or makes another client set replicas.
func (s *schedule) disturb(string) error {
	switch {
	case s.dead:
		return errKilled
	case s.r.IntN(12) == 0:
		s.dead = true
		return errKilled
	case s.r.IntN(12) == 0: // the other client's replicas are the expected ones
		name := slices.Sorted(maps.Keys(s.objects))[s.r.IntN(3)]
		s.want[name] = 1 + s.r.Int32N(9)
		s.set(s.objects[name], func(o *Object) { o.Replicas = s.want[name] })
	}
	return nil
}

// begin disturbs before a write, which fails if the object's version has changed.
func (s *schedule) begin(what string) error {
	name := what[strings.LastIndexByte(what, ' ')+1:]
	version := s.objects[name].Version
	if err := s.disturb(what); err != nil {
		return err
	}
	ofObject := strings.HasPrefix(what, "annotate ") || strings.HasPrefix(what, "set ")
	if ofObject && s.objects[name].Version != version {
		return ErrConflict
	}
	return nil
}
