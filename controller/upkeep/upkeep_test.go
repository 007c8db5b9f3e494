package upkeep

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// kept counts its writes, which fail with problem unless that is nil.
type kept struct {
	*Keeper
	changed chan struct{}

	mu      sync.Mutex
	writes  int
	problem error
	told    []string
}

func (k *kept) write(context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.writes++
	return k.problem
}

func (k *kept) failing(_ context.Context, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.told = append(k.told, err.Error())
}

// fail sets whether writes fail from now on.
func (k *kept) fail(problem error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.problem = problem
}

// take returns what has happened since it was last called.
func (k *kept) take() (writes int, told []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	writes, told = k.writes, k.told
	k.writes, k.told = 0, nil
	return writes, told
}

// start runs a Keeper until the bubble ends.
func start(t *testing.T) *kept {
	k := &kept{Keeper: New(), changed: make(chan struct{}, 1)}
	go func() {
		if err := k.Run(t.Context(), Work{Write: k.write, Failing: k.failing, Changed: k.changed}); err != nil {
			t.Errorf("Run() = %v", err)
		}
	}()
	synctest.Wait()
	return k
}

// advance moves the clock of the bubble.
func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestWritesAfterEachChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t)
		for _, change := range []func(){k.Wake, func() { k.changed <- struct{}{} }, func() { advance(retry) }} {
			change()
			synctest.Wait()
			if writes, _ := k.take(); writes != 1 {
				t.Errorf("%d writes after a change, want 1", writes)
			}
		}
	})
}

// A problem is reported after the first retry, and only once, until it ends or another one replaces it.
func TestProblemsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t)
		told := func(when string, want ...string) {
			t.Helper()
			if _, is := k.take(); !slices.Equal(is, want) {
				t.Errorf("%s: reported %q, want %q", when, is, want)
			}
		}
		k.fail(errors.New("not read yet"))
		k.Wake()
		synctest.Wait()
		told("after a change")
		k.fail(errors.New("away"))
		advance(retry)
		told("when it is tried again", "away")
		advance(3 * retry)
		told("while it is the same")
		k.fail(errors.New("forbidden"))
		advance(retry)
		told("when it is another", "forbidden")
		k.fail(nil)
		advance(retry)
		k.fail(errors.New("forbidden"))
		advance(retry)
		told("when it is back", "forbidden")
	})
}

// If another program overwrites each write at once, the rate of writes is bounded.
func TestRequestsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, made := New(), 0
		ask := func() (err error) {
			for range 10 {
				err = k.Request(t.Context(), func(ctx context.Context) error {
					if end, ok := ctx.Deadline(); !ok || time.Until(end) != requestTimeout {
						t.Errorf("the request may take until %s", end)
					}
					made++
					return nil
				})
			}
			return err
		}
		if err := ask(); made != writesBurst || err == nil || err.Error() != "another program keeps reverting the writes" {
			t.Errorf("%d of 10 requests are sent, %v, want %d", made, err, writesBurst)
		}
		advance(5 * time.Second)
		if made = 0; ask() == nil || made != 1 {
			t.Errorf("%d requests are sent after 5s, want 1", made)
		}
	})
}
