// Package schedule plays random schedules with the pipeline of the control plane. Files and objects change, break and
// are repaired; proxies connect, stall, refuse resources and disconnect; control planes are killed. Time is virtual
// (testing/synctest), and streams are channels. At the end, each client must have the same resources as a new client,
// and no stage may keep anything of disconnected clients.
//
// A seed determines a schedule; see package seeded.
package schedule

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/seeded"
)

// schedules is the number at night, and few in other runs; to run more: SONDE_TEST_SEEDS=10000.
const schedules, few = 1000, 50

func TestMain(m *testing.M) {
	debug.SetGCPercent(1000) // there is little live memory and much garbage
	seeded.Setup()
	goleak.VerifyTestMain(m)
}

// TestSchedules also compares the memory in use at the end with the memory after the first
// schedules.
func TestSchedules(t *testing.T) {
	if seed, one := seeded.One(); one {
		play(t, seed)
		return
	}
	all := slowtest.Rounds(schedules, few)
	first := min(all, max(10, all/10))
	seeded.Range(t, 0, first, play)
	before := inUse()
	seeded.Range(t, first, all, play)
	const slack = 4 << 20
	if after := inUse(); after > before+before/4+slack {
		t.Errorf("%d KiB are in use after %d schedules, %d KiB after %d", after>>10, all, before>>10, first)
	} else {
		t.Logf("%d KiB are in use after %d schedules, %d KiB after %d", after>>10, all, before>>10, first)
	}
}

func inUse() uint64 {
	runtime.GC()
	runtime.GC() // the second collection empties a sync.Pool
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func play(t *testing.T, seed uint64) {
	directory := t.TempDir()
	seeded.Play(t, seed, func(ctx context.Context, j *seeded.Journal) { newSimulation(j, seed, directory).play(ctx) })
}
