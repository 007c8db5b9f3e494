package disk_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/internal/disk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A disk that does not answer holds each caller for Timeout, and performs one operation when it answers again.
func TestDiskThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stuck, done := disk.New(), make(chan struct{}), 0
		for range 3 {
			begin := time.Now()
			err := d.Do(func() error {
				<-stuck
				done++
				return nil
			})
			if !errors.Is(err, disk.ErrNoAnswer) || time.Since(begin) != disk.Timeout {
				t.Errorf("%v after %s", err, time.Since(begin))
			}
		}
		close(stuck)
		synctest.Wait()
		if got, err := disk.Ask(d, func() (int, error) { return done, nil }); err != nil || got != 1 {
			t.Errorf("afterwards: %d, %v, want 1", got, err)
		}
		failed := errors.New("failed")
		if err := d.Do(func() error { return failed }); !errors.Is(err, failed) {
			t.Errorf("an error is %v", err)
		}
	})
}
