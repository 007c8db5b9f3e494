package waittest

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// failed is a test that notes why it fails.
type failed struct {
	testing.TB
	why string
}

func (f *failed) Helper() {}
func (f *failed) Fatalf(format string, args ...any) {
	f.why = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestUntil(t *testing.T) {
	tests := map[string]struct {
		comes time.Duration
		took  time.Duration
		why   string
	}{
		"at once":       {0, 0, ""},
		"after a while": {time.Second, time.Second, ""},
		"too late":      {time.Minute, 2 * time.Second, "not within 2s: the answer: it is missing"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, f := time.Now(), &failed{TB: t}
				done := make(chan struct{})
				go func() {
					defer close(done)
					Until(f, 2*time.Second, "the answer", func() error {
						if time.Since(began) < tc.comes {
							return errors.New("it is missing")
						}
						return nil
					})
				}()
				<-done
				if took := time.Since(began); f.why != tc.why || took != tc.took {
					t.Errorf("Until() fails with %q after %s, want %q after %s", f.why, took, tc.why, tc.took)
				}
			})
		})
	}
}

func TestHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, done := &failed{TB: t}, make(chan struct{})
		go func() {
			defer close(done)
			Holds(f, time.Second, "peace", func() bool { return false })
		}()
		<-done
		if !strings.Contains(f.why, "peace") {
			t.Errorf("Holds() of what never holds fails with %q", f.why)
		}
	})
}
