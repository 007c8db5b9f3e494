// Package schedule plays random schedules against the stages of the control plane, joined as in cmd/sonde-cp: files and
// objects that change, break and are mended, proxies that come, stall, refuse and go, control planes that are killed. Time is
// that of a testing/synctest bubble, and streams are channels. At the end every client has what a new one gets, and
// nothing is left of those that went.
//
// A seed is a schedule. One that fails is printed with the command that plays it again.
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
)

var (
	oneSeed   = flag.Int64("seed", -1, "play the one schedule of this seed, and write down each message")
	schedules = flag.Int("schedules", 1000, "play so many schedules")
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(1000) // there is little memory in use, and much that goes
	// A panic in a goroutine of a stage ends the process: the labels in its trace say the seed.
	if err := os.Setenv("GODEBUG", os.Getenv("GODEBUG")+",tracebacklabels=1"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// TestSchedules also compares the memory in use after all with that after the first ones.
func TestSchedules(t *testing.T) {
	if *oneSeed >= 0 {
		play(t, uint64(*oneSeed))
		return
	}
	first := min(*schedules, max(10, *schedules/10))
	playAll(t, 0, first)
	before := inUse()
	playAll(t, first, *schedules)
	const slack = 4 << 20
	if after := inUse(); after > before+before/4+slack {
		t.Errorf("%d KiB are in use after %d schedules, %d KiB after %d", after>>10, *schedules, before>>10, first)
	} else {
		t.Logf("%d KiB are in use after %d schedules, %d KiB after %d", after>>10, *schedules, before>>10, first)
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
	runtime.GC() // what a pool held goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func play(t *testing.T, seed uint64) {
	folder := t.TempDir()
	var w *world
	defer func() {
		stuck := recover() // goroutines that wait for each other, in the words of synctest
		if w != nil && (stuck != nil || t.Failed()) {
			t.Logf("to play it again: go test ./schedule -run TestSchedules -seed=%d\n%s", seed, w.history())
		}
		if stuck != nil {
			panic(stuck)
		}
	}()
	pprof.Do(t.Context(), pprof.Labels("seed", strconv.FormatUint(seed, 10)), func(context.Context) {
		synctest.Test(t, func(t *testing.T) {
			w = newWorld(t, seed, folder, *oneSeed >= 0)
			w.play(t.Context())
		})
	})
}
