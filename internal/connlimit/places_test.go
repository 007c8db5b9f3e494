package connlimit_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/internal/connlimit"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// room is Places whose connections have names. Only the test's goroutine uses its fields, except those that lost and
// granted write.
type room struct {
	places *connlimit.Places[string]
	taken  map[string]*connlimit.Place[string]
	events chan string
}

func newRoom(o connlimit.Options) *room {
	return &room{connlimit.NewPlaces[string](o), map[string]*connlimit.Place[string]{}, make(chan string, 1000)}
}

// take takes places for connections such as "a1", of source "a", one second apart.
func (r *room) take(names ...string) {
	for _, name := range names {
		<-time.After(time.Second)
		r.taken[name] = r.places.Take(name[:1], func() { r.events <- name + " lost" })
	}
}

// flood takes busy places, each for another source.
func (r *room) flood(n int) {
	for i := range n {
		r.places.TakeBusy(fmt.Sprint("flood", i), func() { r.events <- fmt.Sprint("flood", i, " lost") })
		<-time.After(time.Millisecond)
	}
}

// await awaits a place.
func (r *room) await(timeout time.Duration, names ...string) {
	r.awaitWith(context.Background(), timeout, names...)
}

// awaitWith awaits a place until ctx ends.
func (r *room) awaitWith(ctx context.Context, timeout time.Duration, names ...string) {
	for _, name := range names {
		go func() {
			_, ok := r.places.Await(ctx, timeout, name[:1], func() { r.events <- name + " lost" })
			r.events <- fmt.Sprint(name, " ", ok)
		}()
		synctest.Wait()
	}
}

func (r *room) busy(names ...string) {
	for _, name := range names {
		<-time.After(time.Second)
		r.taken[name].Busy()
	}
}

func (r *room) idle(names ...string) {
	for _, name := range names {
		<-time.After(time.Second)
		r.taken[name].Idle()
	}
}

// happened returns the sorted events so far.
func (r *room) happened() []string {
	synctest.Wait()
	all := []string{}
	for len(r.events) > 0 {
		all = append(all, <-r.events)
	}
	slices.Sort(all)
	return all
}

func TestPlaces(t *testing.T) {
	for name, tc := range map[string]struct {
		options connlimit.Options
		run     func(r *room)
		want    []string
	}{
		"many sources, the one idle since longest": {
			connlimit.Options{Total: 3}, func(r *room) { r.take("a1", "b1", "c1", "d1") }, []string{"a1 lost"},
		},
		"many sources, the busy stay": {
			connlimit.Options{Total: 3}, func(r *room) {
				r.take("a1", "b1", "c1")
				r.busy("a1", "c1")
				r.take("d1")
			}, []string{"b1 lost"},
		},
		"busy from the first moment": {
			connlimit.Options{Total: 2}, func(r *room) {
				r.take("a1")
				r.places.TakeBusy("b", func() { r.events <- "b1 lost" })
				r.busy("a1")
				r.idle("a1")
				r.take("c1")
			}, []string{"a1 lost"},
		},
		"many sources, all busy": {
			connlimit.Options{Total: 2}, func(r *room) {
				r.take("a1", "b1")
				r.busy("b1", "a1")
				r.take("c1")
			}, []string{"b1 lost"},
		},
		"idle again since later": {
			connlimit.Options{Total: 2}, func(r *room) {
				r.take("a1", "b1")
				r.busy("a1")
				r.idle("a1")
				r.take("c1")
			}, []string{"b1 lost"},
		},
		"of many places, two of a source count as one": {
			connlimit.Options{Total: 256}, func(r *room) {
				r.flood(254)
				r.take("a1", "a2")
				r.busy("a1", "a2")
				r.take("b1", "c1")
			}, []string{"b1 lost", "flood0 lost"},
		},
		"and three as three": {
			connlimit.Options{Total: 256}, func(r *room) {
				r.flood(253)
				r.take("a1", "a2", "a3")
				r.busy("a1", "a2", "a3")
				r.take("b1", "c1")
			}, []string{"a1 lost", "b1 lost"},
		},
		"one source has its own limit": {
			connlimit.Options{Each: 2}, func(r *room) { r.take("a1", "b1", "b2", "c1", "b3") }, []string{"b1 lost"},
		},
		"and a limit of one": {
			connlimit.Options{Each: 1, Total: 2}, func(r *room) { r.take("a1", "a2", "b1", "a3") }, []string{"a1 lost", "a2 lost"},
		},
		"one that has left makes room": {
			connlimit.Options{Total: 1}, func(r *room) {
				r.take("a1")
				r.taken["a1"].Leave()
				r.taken["a1"].Leave()
				r.take("b1")
			}, []string{},
		},
		"one that is lost changes nothing": {
			connlimit.Options{Total: 1}, func(r *room) {
				r.take("a1", "b1")
				r.busy("a1")
				r.idle("a1")
				r.taken["a1"].Leave()
				r.take("c1")
			}, []string{"a1 lost", "b1 lost"},
		},
		"a free place is no wait": {
			connlimit.Options{Total: 1}, func(r *room) { r.await(0, "a1") }, []string{"a1 true"},
		},
		"one that has gone waits no more": {
			connlimit.Options{Total: 1}, func(r *room) {
				r.take("a1")
				r.busy("a1")
				ctx, cancel := context.WithCancel(context.Background())
				r.awaitWith(ctx, time.Minute, "b1")
				cancel()
				synctest.Wait()
				r.await(time.Minute, "c1")
				r.taken["a1"].Leave()
			}, []string{"b1 false", "c1 true"},
		},
		"one that has gone before takes no place": {
			connlimit.Options{Total: 1}, func(r *room) {
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				r.awaitWith(ctx, time.Minute, "b1")
				r.await(0, "c1")
			}, []string{"b1 false", "c1 true"},
		},
		"busy ones lose nothing to those who wait": {
			connlimit.Options{Total: 1, Patience: time.Second}, func(r *room) {
				r.take("a1")
				r.busy("a1")
				r.await(time.Minute, "b1")
				<-time.After(time.Minute)
			}, []string{"b1 false"},
		},
		"idle ones do when patience ends": {
			connlimit.Options{Total: 2, Patience: 10 * time.Second}, func(r *room) {
				r.take("a1", "b1")
				r.busy("b1")
				r.await(time.Minute, "c1")
				<-time.After(10 * time.Second)
			}, []string{"a1 lost", "c1 true"},
		},
		"not before": {
			connlimit.Options{Total: 1, Patience: 10 * time.Second}, func(r *room) {
				r.take("a1")
				r.await(time.Minute, "c1")
				<-time.After(9 * time.Second)
			}, []string{},
		},
		"nor if they are busy meanwhile": {
			connlimit.Options{Total: 1, Patience: 10 * time.Second}, func(r *room) {
				r.take("a1")
				r.await(time.Minute, "b1")
				<-time.After(5 * time.Second)
				r.busy("a1")
				r.idle("a1")
				<-time.After(9 * time.Second)
			}, []string{},
		},
		"first the source with the most": {
			connlimit.Options{Total: 4, Patience: 2 * time.Second}, func(r *room) {
				r.take("b1", "a1", "a2", "a3")
				<-time.After(time.Minute)
				r.await(time.Minute, "c1")
			}, []string{"a1 lost", "c1 true"},
		},
		"but only the ripe": {
			connlimit.Options{Total: 3, Patience: 10 * time.Second}, func(r *room) {
				r.take("b1")
				<-time.After(9 * time.Second)
				r.take("a1", "a2")
				r.await(time.Minute, "c1")
			}, []string{"b1 lost", "c1 true"},
		},
		"the newest comes first": {
			connlimit.Options{Total: 1}, func(r *room) {
				r.take("a1")
				r.busy("a1")
				r.await(time.Minute, "b1", "c1", "d1")
				r.taken["a1"].Leave()
			}, []string{"d1 true"},
		},
		"then the oldest": {
			connlimit.Options{Total: 2}, func(r *room) {
				r.take("a1", "a2")
				r.busy("a1", "a2")
				r.await(time.Minute, "b1", "c1", "d1")
				r.taken["a1"].Leave()
				r.taken["a2"].Leave()
			}, []string{"b1 true", "d1 true"},
		},
		"slow good peers make it patient": {
			connlimit.Options{Total: 1, Patience: time.Second, MaxPatience: 10 * time.Second}, func(r *room) {
				<-time.After(time.Minute) // the initial patience is over
				r.take("a1")
				r.places.Took(4 * time.Second)
				r.await(time.Minute, "b1")
				<-time.After(2 * time.Second)
			}, []string{},
		},
		"until it is forgotten": {
			connlimit.Options{Total: 1, Patience: time.Second, MaxPatience: 10 * time.Second}, func(r *room) {
				r.places.Took(4 * time.Second)
				<-time.After(time.Minute)
				r.places.Took(time.Millisecond)
				r.take("a1")
				r.await(time.Minute, "b1")
				<-time.After(2 * time.Second)
			}, []string{"a1 lost", "b1 true"},
		},
		"at the start it is patient": {
			connlimit.Options{Total: 1, Patience: time.Second, MaxPatience: 10 * time.Second}, func(r *room) {
				r.take("a1")
				r.await(time.Minute, "b1")
				<-time.After(1500 * time.Millisecond)
			}, []string{},
		},
		"of the source with the fewest": {
			connlimit.Options{Total: 2}, func(r *room) {
				r.take("a1", "b1")
				r.busy("a1", "b1")
				r.await(time.Minute, "a2", "c1", "b2", "a3")
				r.taken["a1"].Leave()
			}, []string{"a3 true"},
		},
		"of a source that has none": {
			connlimit.Options{Total: 3}, func(r *room) {
				r.take("a1", "a2", "b1")
				r.busy("a1", "a2", "b1")
				r.await(time.Minute, "c1", "b2", "a3")
				r.taken["a1"].Leave()
			}, []string{"c1 true"},
		},
		"a source with all that one may have gets its own": {
			connlimit.Options{Total: 3, Each: 2}, func(r *room) {
				r.take("a1", "a2", "b1")
				r.busy("a1", "a2", "b1")
				r.await(time.Minute, "c1", "a3")
			}, []string{"a1 lost", "a3 true"},
		},
		"a peer that was waited for before": {
			connlimit.Options{Total: 2, Patience: 10 * time.Second}, func(r *room) {
				r.take("a1", "b1")
				r.busy("a1", "b1")
				r.idle("a1")
				r.taken["b1"].IdleFor(9 * time.Second)
				r.await(time.Minute, "c1")
				<-time.After(2 * time.Second)
			}, []string{"b1 lost", "c1 true"},
		},
		"one that has given up gets none": {
			connlimit.Options{Total: 1}, func(r *room) {
				r.take("a1")
				r.busy("a1")
				r.await(time.Second, "b1")
				<-time.After(2 * time.Second)
				r.taken["a1"].Leave()
				r.take("c1")
			}, []string{"b1 false"},
		},
		"closed": {
			connlimit.Options{Total: 2}, func(r *room) {
				r.take("a1", "a2")
				r.busy("a1", "a2")
				r.await(time.Minute, "b1")
				r.places.Close()
				r.await(time.Minute, "c1")
				r.take("d1")
			}, []string{"a1 lost", "a2 lost", "b1 false", "c1 false", "d1 lost"},
		},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			r := newRoom(tc.options)
			tc.run(r)
			if diff := cmp.Diff(tc.want, r.happened()); diff != "" {
				t.Errorf("what happened (-want +got):\n%s", diff)
			}
			r.places.Close() // end the waits
		})
	}
}

// TestTurns frees one place after the other for waiting sources: a and b had turns, a before b; c and d are unknown,
// and z comes last.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		last := map[string]time.Time{"a": began.Add(-2 * time.Minute), "b": began.Add(-time.Minute), "z": began.Add(time.Minute)}
		r := newRoom(connlimit.Options{Total: 1})
		r.places.ByTurns(func(source string) time.Time { return last[source] })
		held := r.places.TakeBusy("x", func() {})
		granted := make(chan *connlimit.Place[string])
		var order []string
		for _, name := range []string{"z", "b", "d", "a", "c"} {
			go func() {
				place, _ := r.places.Await(context.Background(), time.Minute, name, func() {})
				order = append(order, name)
				granted <- place
			}()
			synctest.Wait()
		}
		for range 5 {
			held.Leave()
			held = <-granted
		}
		if diff := cmp.Diff([]string{"c", "a", "d", "b", "z"}, order); diff != "" {
			t.Errorf("the order of turns (-want +got):\n%s", diff)
		}
	})
}

// BenchmarkFlood has as many sources as connections at the limit.
func BenchmarkFlood(b *testing.B) {
	for _, sources := range []int{1, 8192} {
		b.Run(fmt.Sprint(sources, " sources"), func(b *testing.B) {
			places := connlimit.NewPlaces[int](connlimit.Options{Total: 8192})
			n := 0
			for b.Loop() {
				places.Take(n%sources, func() {}).Busy()
				n++
			}
		})
	}
}
