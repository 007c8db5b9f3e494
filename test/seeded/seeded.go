// Package seeded plays random schedules in virtual time (testing/synctest). A seed determines a schedule: a failure
// prints the seed, the command that plays it again, and the journal. SONDE_TEST_SEEDS sets how many schedules are
// played (slowtest.Rounds).
package seeded

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var oneSeed = flag.Int64("seed", -1, "play the one schedule of this seed, and write down each message")

// Setup is called by TestMain.
func Setup() {
	// A panic in a goroutine of a stage ends the process. The labels in its trace contain the seed.
	if err := os.Setenv("GODEBUG", os.Getenv("GODEBUG")+",tracebacklabels=1"); err != nil {
		panic(err)
	}
}

// One returns the seed of the one requested schedule, and false if all are requested.
func One() (seed uint64, is bool) { return uint64(*oneSeed), *oneSeed >= 0 }

// Range plays the schedules of these seeds, several at once.
func Range(t *testing.T, from, to int, play func(t *testing.T, seed uint64)) {
	t.Run(fmt.Sprintf("from %d", from), func(t *testing.T) {
		for seed := from; seed < to; seed++ {
			t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
				t.Parallel()
				play(t, uint64(seed))
			})
		}
	})
}

// Play plays one schedule in virtual time.
func Play(t *testing.T, seed uint64, play func(ctx context.Context, j *Journal)) {
	var j *Journal
	defer func() {
		stuck := recover() // synctest panics if all goroutines are blocked
		if j != nil && (stuck != nil || t.Failed()) {
			test, _, _ := strings.Cut(t.Name(), "/")
			t.Logf("to repeat it: go test -run '^%s$' -seed=%d\n%s", test, seed, j.history())
		}
		if stuck != nil {
			panic(stuck)
		}
	}()
	pprof.Do(t.Context(), pprof.Labels("seed", strconv.FormatUint(seed, 10)), func(context.Context) {
		synctest.Test(t, func(t *testing.T) {
			_, verbose := One()
			j = &Journal{begun: time.Now(), report: t.Errorf, verbose: verbose}
			play(t.Context(), j)
		})
	})
}

// Journal records the events of a schedule. Its methods may be called from any goroutine.
type Journal struct {
	begun   time.Time
	report  func(format string, args ...any)
	verbose bool

	mu     sync.Mutex
	lines  []string
	wrongs []string
}

// Note writes a line, which is shown if the schedule fails.
func (j *Journal) Note(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf("%10.3fs ", time.Since(j.begun).Seconds())+fmt.Sprintf(format, args...))
}

// Detail writes a line if only one schedule is played.
func (j *Journal) Detail(format string, args ...any) {
	if j.verbose {
		j.Note("    "+format, args...)
	}
}

// Wrong fails the schedule.
func (j *Journal) Wrong(format string, args ...any) {
	j.Note("WRONG: "+format, args...)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.wrongs = append(j.wrongs, fmt.Sprintf(format, args...))
	j.report(format, args...)
}

// Expect makes violations not fail the test, for schedules that must have one.
func (j *Journal) Expect() { j.report = func(string, ...any) {} }

// Failed reports whether there was a violation.
func (j *Journal) Failed() bool { return len(j.Wrongs()) > 0 }

// Wrongs returns the violations.
func (j *Journal) Wrongs() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.wrongs)
}

func (j *Journal) history() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.lines, "\n")
}
