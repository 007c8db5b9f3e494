package run_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/internal/run"
)

func TestSleepEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := run.Sleep(ctx, 999*time.Millisecond); err != nil {
			t.Errorf("Sleep() error = %v, want nil", err)
		}
		if err := run.Sleep(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Sleep() error = %v, want the context's", err)
		}
	})
}

func TestSignalsSetBeforeTheLoopReceivesAreOne(t *testing.T) {
	s := run.NewSignal()
	for range 3 {
		s.Set()
	}
	<-s
	select {
	case <-s:
		t.Error("the signal was received twice")
	default:
	}
	s.Set()
	<-s
}
