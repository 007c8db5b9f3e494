package cluster

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/partition"
	"github.com/sonde-mesh/sonde/watchdog/scale"
)

// TestSchedules simulates network partitions, outages, wrong and changing clocks, flapping, new and deleted nodes, and
// leaders that are stopped, killed, or disconnected while the next one already leads. No dependant is scaled down while
// enough nodes are healthy, and all are scaled up in the end.
func TestSchedules(t *testing.T) {
	const parts = 4
	for part := range uint64(parts) {
		t.Run(strconv.FormatUint(part, 10), func(t *testing.T) {
			t.Parallel()
			for i := range uint64(slowtest.Rounds(10_000, 500) / parts) {
				seed := i*parts + part
				synctest.Test(t, func(t *testing.T) {
					s := &schedule{world: newWorld(2), r: rand.New(rand.NewPCG(seed, 29)), want: map[string]int32{"kcm": 2, "mcm": 1, "ca": 1}}
					s.play(t)
					if t.Failed() {
						t.Fatalf("seed %d: actions %q", seed, s.actions)
					}
				})
			}
		})
	}
}

// schedule is a running simulation.
type schedule struct {
	*world
	r     *rand.Rand
	want  map[string]int32 // the expected replicas of dependants
	epoch int64
	lead  leading
	old   []leading // running leaders

	loss     bool // enough nodes were silent
	lastLoss time.Time
}

// leading is a running leader.
type leading struct{ cut, stop func() }

func (s *schedule) play(t *testing.T) {
	t.Helper()
	for i := range 2 + s.r.IntN(6) {
		s.add(fmt.Sprint("m", i), time.Duration(s.r.Int64N(int64(renewEvery)))).skew = s.clock()
	}
	s.readLeases = s.witness
	s.lowered = func(name string) {
		if !s.loss {
			t.Errorf("%s is scaled down, although enough nodes renew their leases", name)
		}
	}
	s.next(t.Context())
	for range 12 {
		after(time.Duration(s.r.Int64N(int64(90 * time.Second))))
		s.happen(t.Context())
	}
	s.change(func() {
		clear(s.apiErr)
		for _, n := range s.nodes {
			n.cut = false
		}
	})
	after(6 * time.Minute)
	s.lead.stop()
	for _, l := range s.old {
		l.stop()
	}
	for name, n := range s.want {
		if got := s.objects[name].Replicas; got != n {
			t.Errorf("%s has %d replicas once all is well, want %d", name, got, n)
		}
	}
	if err := s.left(); err != nil {
		t.Error(err)
	}
}

// clock returns the error of a clock.
func (s *schedule) clock() time.Duration {
	return time.Duration(s.r.Int64N(int64(2*time.Hour))) - time.Hour
}

// next starts a leader.
func (s *schedule) next(ctx context.Context) {
	s.epoch++
	_, cut, stop := s.world.lead(ctx, s.epoch)
	s.lead = leading{cut, stop}
}

// happen simulates one event.
func (s *schedule) happen(ctx context.Context) {
	names := slices.Sorted(maps.Keys(s.nodes))
	some := names[:s.r.IntN(len(names)+1)]
	switch s.r.IntN(12) {
	case 0, 1:
		s.cut(true)
	case 2, 3:
		s.cut(false)
	case 4:
		s.cut(s.r.IntN(2) == 0, some...)
	case 5:
		s.change(func() {
			what := []string{"open", "version", "nodes", "leases", "going"}[s.r.IntN(5)]
			s.apiErr[what] = fails([]partition.Cause{partition.APIServerAway, partition.Throttled, partition.Unreadable}[s.r.IntN(3)], time.Duration(s.r.IntN(20))*time.Second)
		})
	case 6:
		s.change(func() { clear(s.apiErr) })
	case 7: // an hour or more, since less could be a slow renewal
		s.change(func() {
			for _, name := range some {
				s.nodes[name].skew += time.Duration(1+s.r.IntN(3)) * time.Hour * time.Duration(1-2*s.r.IntN(2))
			}
		})
	case 8:
		s.change(func() {
			if len(names) > 3 && s.r.IntN(2) == 0 {
				delete(s.nodes, names[s.r.IntN(len(names))])
				return
			}
			s.add(fmt.Sprint("x", s.r.IntN(1000)), time.Duration(s.r.Int64N(int64(renewEvery))))
		})
	case 9: // stopped, and replaced at once
		s.lead.stop()
		s.next(ctx)
	case 10: // disconnected from its API server: the next one leads while this one continues
		s.lead.cut()
		s.old = append(s.old, s.lead)
		s.next(ctx)
	case 11:
		s.change(func() {
			name := []string{"kcm", "mcm", "ca"}[s.r.IntN(3)]
			s.want[name] = 1 + s.r.Int32N(9)
			s.touch(s.objects[name], func(o *scale.Object) { o.Replicas = s.want[name] })
		})
	}
}

// witnessed is how long after a reading with enough silent nodes dependants may be scaled down: three probes, each with
// delays.
const witnessed = 3 * time.Minute

// witness records for each reading of the leases whether enough nodes are silent by the true clock. The reading of a
// leader may differ: it cannot know when nodes renewed after its previous reading.
func (s *schedule) witness() {
	judge := conf().Judge
	silent := 0
	for _, n := range s.nodes {
		if time.Since(n.renewed) >= judge.Silence-renewEvery {
			silent++
		}
	}
	switch share := float64(silent) / float64(max(1, len(s.nodes))); {
	case share >= judge.Enter, s.loss && share >= judge.Leave:
		s.loss, s.lastLoss = true, time.Now()
	case time.Since(s.lastLoss) > witnessed:
		s.loss = false
	}
}
