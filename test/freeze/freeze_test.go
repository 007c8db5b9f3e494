// Package freeze plays random schedules with the freeze of the control plane's replicas. Kubelets become silent,
// agents disconnect and reconnect to any replica; replicas start, end, are killed, are disconnected from each other
// and from the API server, receive changes late, and lead for too long. The judgement is real; its inputs are in
// memory, and time is virtual. Nothing may be frozen in a healthy and seen fleet, lost zones must be frozen, and
// everything must thaw after it is seen again.
package freeze

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/seeded"
)

// schedules is the number at night, and few in other runs; to run more: SONDE_TEST_SEEDS=10000.
const schedules, few = 300, 50

func TestMain(m *testing.M) {
	seeded.Setup()
	goleak.VerifyTestMain(m)
}

func each(t *testing.T, play func(ctx context.Context, s *simulation)) {
	one := func(t *testing.T, seed uint64) {
		seeded.Play(t, seed, func(ctx context.Context, j *seeded.Journal) {
			s := newSimulation(j, seed)
			s.run(ctx, func(ctx context.Context) { play(ctx, s) })
		})
	}
	if seed, is := seeded.One(); is {
		one(t, seed)
		return
	}
	seeded.Range(t, 0, slowtest.Rounds(schedules, few), one)
}

// Single kubelets become silent, agents reconnect, and the control plane has all faults at once: the mesh is healthy,
// and seen.
func TestWellAndSeen(t *testing.T) {
	each(t, func(ctx context.Context, s *simulation) {
		s.never = true
		s.disturb(ctx, 10*time.Minute)
	})
}

// One zone or all are lost for a while, with faults before, meanwhile and after.
func TestLostAndFound(t *testing.T) {
	each(t, func(ctx context.Context, s *simulation) {
		s.disturb(ctx, 2*time.Minute)
		lost := s.lose()
		s.disturb(ctx, 3*time.Minute)
		s.calm(ctx, 3*time.Minute)
		for _, zone := range lost {
			s.mustBe(zone, true)
		}
		s.disturb(ctx, time.Minute)
		s.find()
		s.disturb(ctx, 2*time.Minute)
		s.calm(ctx, 5*time.Minute)
		s.mustBe("", false)
	})
}
