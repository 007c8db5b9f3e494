// Package replicas plays random schedules against replicas of the control plane and agents: replicas start, end and are killed, lead for too long, hear of
// things late, are cut from each other, from the API server and from agents; CAs are rotated; agents connect anywhere, and some are of an earlier
// release. The parts that speak are the real ones, over gRPC and mTLS; what they speak through is in memory, and time is virtual. No agent may ever trust less
// than it has, no certificate may be refused, and when all is quiet each replica serves each proxy the same.
//
// What happens is drawn from the seed, and how goroutines take turns is not: a seed may have to be played several times.
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

// schedules are played at night, and few in other runs; more by hand: SONDE_TEST_SEEDS=10000.
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

// TestEpochsAreNeeded plays schedules in which agents know no epochs. Soon one of them goes back to an older bundle.
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
	t.Error("without epochs no agent goes back to an older bundle")
}
