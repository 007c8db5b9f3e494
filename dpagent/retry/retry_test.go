package retry_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/retry"
)

func TestBackoffGrowsToItsLimit(t *testing.T) {
	b := retry.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for round := range 2 {
		for n, ms := range []int{100, 200, 400, 800, 1000, 1000} {
			want := time.Duration(ms) * time.Millisecond
			if got := b.Next(); got > want || got < want*3/4 {
				t.Errorf("round %d, Next() number %d = %s, want %s less up to a quarter", round, n, got, want)
			}
		}
		b.Reset()
	}
}

func TestReporterRepeatsItselfOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		r := retry.Reporter{Logger: slog.New(slog.NewTextHandler(&out, nil))}
		fail := func(text string) { r.Failed(t.Context(), slog.LevelWarn, "try", errors.New(text)) }
		for range 130 { // 2 minutes and 10 s
			fail("away")
			time.Sleep(time.Second)
		}
		if n := strings.Count(out.String(), "err=away"); n != 3 {
			t.Errorf("the same failure was logged %d times in 2 minutes, want 3", n)
		}
		fail("refused")
		fail("refused")
		if n := strings.Count(out.String(), "err=refused"); n != 1 {
			t.Errorf("another failure was logged %d times, want 1", n)
		}
		r.Succeeded()
		fail("refused")
		if n := strings.Count(out.String(), "err=refused"); n != 2 {
			t.Errorf("a failure after a success was logged %d times in all, want 2", n)
		}
	})
}
