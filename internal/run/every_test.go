package run_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/internal/run"
)

func TestLoopsTurn(t *testing.T) {
	type loop = func(context.Context, time.Duration) func(func() bool)
	tests := map[string]struct {
		loop func(wake run.Signal) loop
		want []int // seconds after the start
	}{
		"every": {func(run.Signal) loop { return run.Every }, []int{0, 10, 20}},
		"every or": {func(wake run.Signal) loop {
			return func(ctx context.Context, d time.Duration) func(func() bool) { return run.EveryOr(ctx, d, wake) }
		}, []int{0, 4, 10, 20}},
		"ticks": {func(run.Signal) loop { return run.Ticks }, []int{10, 20}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
				defer cancel()
				began, wake := time.Now(), run.NewSignal()
				time.AfterFunc(4*time.Second, wake.Set)
				var turns []int
				for range tc.loop(wake)(ctx, 10*time.Second) {
					turns = append(turns, int(time.Since(began)/time.Second))
				}
				if !slices.Equal(turns, tc.want) {
					t.Errorf("the loop iterates after %v s, want %v", turns, tc.want)
				}
				if ended := time.Since(began); ended != 25*time.Second {
					t.Errorf("the loop ends after %s, want with the context", ended)
				}
			})
		})
	}
}

func TestLoopsEndByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, turns := time.Now(), 0
		for range run.Ticks(t.Context(), time.Second) {
			if turns++; turns == 2 {
				break
			}
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("the loop ends after %s, want 2s", took)
		}
	})
}
