// Package schedule plays random schedules against the pipeline of the control plane. Files and objects change, break and are
// mended; proxies come, stall, refuse and go; control planes are killed. Time is virtual (testing/synctest), and streams are
// channels. At the end each client must have what a new one gets, and no stage may hold anything of clients that are gone.
//
// A seed is a schedule. A failure prints the seed, with the command that plays it again.
package schedule

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/internal/slowtest"
)

var (
	oneSeed   = flag.Int64("seed", -1, "play the one schedule of this seed, and write down each message")
	schedules = flag.Int("schedules", 1000, "play so many schedules")
)

// fewSchedules are enough for a short run.
const fewSchedules = 50

func TestMain(m *testing.M) {
	debug.SetGCPercent(1000) // there is little live memory and much garbage
	// A panic in a goroutine of a stage ends the process. The labels in its trace have the seed.
	if err := os.Setenv("GODEBUG", os.Getenv("GODEBUG")+",tracebacklabels=1"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// TestSchedules also compares the memory in use at the end with that after the first schedules.
func TestSchedules(t *testing.T) {
	if *oneSeed >= 0 {
		play(t, uint64(*oneSeed))
		return
	}
	all := slowtest.Rounds(*schedules, fewSchedules)
	first := min(all, max(10, all/10))
	playAll(t, 0, first)
	before := inUse()
	playAll(t, first, all)
	const slack = 4 << 20
	if after := inUse(); after > before+before/4+slack {
		t.Errorf("%d KiB are in use after %d schedules, %d KiB after %d", after>>10, all, before>>10, first)
	} else {
		t.Logf("%d KiB are in use after %d schedules, %d KiB after %d", after>>10, all, before>>10, first)
	}
}

func playAll(t *testing.T, from, to int) {
	t.Run(fmt.Sprintf("from %d", from), func(t *testing.T) {
		for seed := from; seed < to; seed++ {
			t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
				t.Parallel()
				play(t, uint64(seed))
			})
		}
	})
}

func inUse() uint64 {
	runtime.GC()
	runtime.GC() // a sync.Pool is emptied by the second collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func play(t *testing.T, seed uint64) {
	directory := t.TempDir()
	var s *simulation
	defer func() {
		stuck := recover() // synctest panics if all goroutines are blocked
		if s != nil && (stuck != nil || t.Failed()) {
			t.Logf("to play it again: go test ./schedule -run TestSchedules -seed=%d\n%s", seed, s.history())
		}
		if stuck != nil {
			panic(stuck)
		}
	}()
	pprof.Do(t.Context(), pprof.Labels("seed", strconv.FormatUint(seed, 10)), func(context.Context) {
		synctest.Test(t, func(t *testing.T) {
			s = newSimulation(t, seed, directory, *oneSeed >= 0)
			s.play(t.Context())
		})
	})
}
