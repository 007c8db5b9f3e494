package wait

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// failed is a test that records why it failed.
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
		comes, took time.Duration
		why         string
	}{
		"at once":       {0, 0, ""},
		"after a while": {time.Second, time.Second, ""},
		"too late":      {time.Hour, virtualLimit, "not within 10m0s: the answer: it is missing"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, f := time.Now(), &failed{TB: t}
				done := make(chan struct{})
				go func() {
					defer close(done)
					Until(f, "the answer", func() error {
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

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, done := &failed{TB: t}, make(chan struct{})
		go func() {
			defer close(done)
			For(f, "peace", func() bool { return false })
		}()
		<-done
		if !strings.Contains(f.why, "peace") {
			t.Errorf("For() of a false condition fails with %q", f.why)
		}
	})
}

// withDeadline is a test with this deadline; the zero time means none.
type withDeadline struct {
	testing.TB
	at time.Time
}

func (w withDeadline) Deadline() (time.Time, bool) { return w.at, !w.at.IsZero() }

func TestContextEndsBeforeTheTest(t *testing.T) {
	at := time.Now().Add(time.Hour)
	got, bounded := Context(withDeadline{t, at}).Deadline()
	if want := at.Add(-reserve); !bounded || !got.Equal(want) {
		t.Errorf("deadline %s, %t, want %s", got, bounded, want)
	}
	if got, bounded := Context(withDeadline{TB: t}).Deadline(); bounded {
		t.Errorf("deadline %s without a timeout of go test", got)
	}
}

func TestReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		values := make(chan int)
		time.AfterFunc(time.Minute, func() { values <- 7 })
		if got := Receive(t, "a value", values); got != 7 {
			t.Errorf("Receive() = %d, want 7", got)
		}
		began, f, done := time.Now(), &failed{TB: t}, make(chan struct{})
		go func() {
			defer close(done)
			Receive(f, "another value", values)
		}()
		<-done
		if took := time.Since(began); f.why != "timeout: another value" || took != virtualLimit {
			t.Errorf("Receive() without a value fails with %q after %s", f.why, took)
		}
	})
}
