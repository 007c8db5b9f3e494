// Package freeze plays random schedules against the freeze of replicas of the control plane: kubelets fall silent, agents are cut off and come back at any
// replica, replicas start, end and are killed, are cut from each other and from the API server, hear of things late, and lead for too long. The judgement is
// the real one; what it is told through is in memory, and time is virtual. Nothing may be frozen in a fleet that is well and seen, what is lost has to be
// frozen, and once sight is back all has to thaw.
package freeze

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/seeded"
)

// schedules are played at night, and few in other runs; more by hand: SONDE_TEST_SEEDS=10000.
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

// Single kubelets fall silent, agents come and go, and the control plane has all troubles at once: the mesh is well, and seen.
func TestWellAndSeen(t *testing.T) {
	each(t, func(ctx context.Context, s *simulation) {
		s.never = true
		s.disturb(ctx, 10*time.Minute)
	})
}

// A zone, or all, is lost for a while, with troubles before, meanwhile and after.
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
