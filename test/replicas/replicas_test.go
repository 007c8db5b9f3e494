// Package replicas plays random schedules with replicas of the control plane and agents. Replicas start, end, are
// killed, lead for too long, receive changes late, and are disconnected from each other, from the API server and from
// agents; CAs are rotated; agents connect to any replica, and some are of an earlier release. The communicating parts
// are real, over gRPC and mTLS; the network and storage are in memory, and time is virtual. No agent may ever return
// to an older bundle, no certificate may be refused, and after all faults have ended, each replica serves each proxy
// the same configuration.
//
// The seed determines the events, but not how goroutines are scheduled: a seed may have to be played several times.
package replicas

import (
	"context"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/seeded"
)

// schedules is the number at night, and few in other runs; to run more: SONDE_TEST_SEEDS=10000.
const schedules, few = 40, 5

func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	seeded.Setup()
	goleak.VerifyTestMain(m)
}

func TestSchedules(t *testing.T) {
	play := func(t *testing.T, seed uint64) {
		directory := t.TempDir()
		seeded.Play(t, seed, func(ctx context.Context, j *seeded.Journal) { newSimulation(j, seed, directory, true).play(ctx) })
	}
	if seed, one := seeded.One(); one {
		play(t, seed)
		return
	}
	seeded.Range(t, 0, slowtest.Rounds(schedules, few), play)
}

// TestEpochsAreNeeded plays schedules in which agents get no epochs. Soon one of them returns to an older bundle.
func TestEpochsAreNeeded(t *testing.T) {
	slowtest.Nightly(t, "how many schedules it takes is chance")
	for seed := range uint64(schedules) {
		directory := t.TempDir()
		var wrongs []string
		seeded.Play(t, seed, func(ctx context.Context, j *seeded.Journal) {
			j.Expect()
			newSimulation(j, seed, directory, false).play(ctx)
			wrongs = j.Wrongs()
		})
		if i := slices.IndexFunc(wrongs, func(text string) bool { return strings.Contains(text, goesBack) }); i >= 0 {
			t.Logf("schedule %d: %s", seed, wrongs[i])
			return
		}
	}
	t.Error("without epochs, no agent returns to an older bundle")
}
