// Package restarts plays random schedules of guarded liveness (docs/guarded-liveness.md). Liveness probes of one,
// many or all containers fail. Meanwhile, leaders are killed between the object of a grant and its message, are
// stopped and woken, or hand over; replicas, agents, sidecars and kubelets restart; the API server or the whole
// control plane is stopped; pods are deleted or rolled out, and budgets change. The parts that decide, send and hold
// are real, over gRPC and mTLS; the API server, the kubelets and the network are in memory, and time is virtual. No
// restart may happen without a grant, or beyond the budget, and after all faults have ended, everything that fails
// has restarted.
//
// The seed determines the events, but not how goroutines are scheduled: a seed may have to be played several times.
package restarts

import (
	"context"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/seeded"
)

// schedules is the number at night, and few in other runs; to run more: SONDE_TEST_SEEDS=10000.
const schedules, few = 15, 1

func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	utilruntime.ErrorHandlers = nil                   // one of these handlers limits its rate across all schedules
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // client-go logs watches that break
	seeded.Setup()
	goleak.VerifyTestMain(m)
}

func TestSchedules(t *testing.T) {
	play := func(t *testing.T, seed uint64) {
		seeded.Play(t, seed, func(ctx context.Context, j *seeded.Journal) { newSimulation(j, seed, whole).play(ctx) })
	}
	if seed, one := seeded.One(); one {
		play(t, seed)
		return
	}
	seeded.Range(t, 0, slowtest.Rounds(schedules, few), play)
}

// TestReservationsAreNeeded plays schedules in which a leader ignores the restarts that earlier leaders have granted.
// Soon too many are in progress.
func TestReservationsAreNeeded(t *testing.T) { expect(t, forgetful, tooMany) }

// TestEpochsAreNeeded plays schedules in which agents cannot tell which of two leaders is the newer
// one.
func TestEpochsAreNeeded(t *testing.T) {
	slowtest.Nightly(t, "how many schedules it takes is chance")
	expect(t, withoutEpochs, tooMany, 110, 12, 24, 7, 25, 51, 71, 105, 64) // seeds that find it more often than others
}

// expect fails unless one of the schedules of a variant violates the given rule. It plays the first seeds before the
// others.
func expect(t *testing.T, v variant, wrong string, first ...uint64) {
	t.Helper()
	for i := range 20 * schedules {
		seed := uint64(i)
		if i < len(first) {
			seed = first[i]
		}
		var wrongs []string
		seeded.Play(t, seed, func(ctx context.Context, j *seeded.Journal) {
			j.Expect()
			newSimulation(j, seed, v).play(ctx)
			wrongs = j.Wrongs()
		})
		if i := slices.IndexFunc(wrongs, func(text string) bool { return strings.Contains(text, wrong) }); i >= 0 {
			t.Logf("schedule %d: %s", seed, wrongs[i])
			return
		}
	}
	t.Errorf("no schedule finds that %s", wrong)
}
