package partition

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
)

// TestSchedules plays random readings, and compares each verdict with a slow definition of the expected one.
func TestSchedules(t *testing.T) {
	for seed := range uint64(slowtest.Rounds(3_000, 500)) {
		if err := play(rand.New(rand.NewPCG(seed, 29))); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// play judges random readings of members that are added, removed, become silent and are heard again.
func play(r *rand.Rand) error {
	s := Settings{Silence: silence, Enter: 0.1 + 0.9*r.Float64(), Calm: 1 + r.IntN(4), Quiet: time.Duration(r.IntN(5)) * 10 * time.Second}
	s.Leave = s.Enter * (0.1 + 0.9*r.Float64())
	zones := []string{"", "a", "b", "c"}[:1+r.IntN(4)]
	state, w := State(nil), &witness{settings: s, latched: map[Group]bool{}, calm: map[Group]int{}, calmFrom: map[Group]time.Time{}}
	mood := 0.0 // share of silent members
	for step := range 60 {
		reading := Reading{At: epoch.Add(time.Duration(step) * 10 * time.Second)}
		if r.IntN(4) == 0 {
			mood = []float64{0, 0.3, 0.6, 1}[r.IntN(4)]
		}
		if r.IntN(8) == 0 {
			reading.Failed = []Cause{APIServerAway, Throttled}[r.IntN(2)]
		}
		for i := range r.IntN(12) {
			m := Member{Name: strconv.Itoa(i), Zone: zones[r.IntN(len(zones))]}
			if r.IntN(10) > 0 {
				m.Heard = reading.At.Add(-time.Duration(r.Int64N(int64(silence))))
				if r.Float64() < mood {
					m.Heard = reading.At.Add(-silence - time.Duration(r.Int64N(int64(time.Hour))))
				}
			}
			reading.Members = append(reading.Members, m)
		}
		next := Judge(state, reading, s)
		r.Shuffle(len(reading.Members), func(i, j int) { reading.Members[i], reading.Members[j] = reading.Members[j], reading.Members[i] })
		if other := Judge(state, reading, s); !reflect.DeepEqual(next, other) {
			return fmt.Errorf("step %d: in another order %v, want %v", step, other, next)
		}
		if err := w.check(next, reading); err != nil {
			return fmt.Errorf("step %d: %+v with %+v: %w", step, reading, s, err)
		}
		state = next
	}
	return nil
}

// witness keeps its own record of each group.
type witness struct {
	settings Settings
	latched  map[Group]bool
	calm     map[Group]int
	calmFrom map[Group]time.Time // time of the first of these readings
}

func (w *witness) check(now State, r Reading) error {
	if r.Failed != "" {
		clear(w.calm)
		for group, s := range now {
			if s.Verdict != Unknown || s.Cause != r.Failed || s.Latched() != w.latched[group] {
				return fmt.Errorf("%s is %+v after a reading that failed", group, s)
			}
		}
		return nil
	}
	groups := map[Group][]Member{Whole: nil}
	for _, m := range r.Members {
		groups[Whole] = append(groups[Whole], m)
		if m.Zone != "" {
			groups[Group{m.Zone}] = append(groups[Group{m.Zone}], m)
		}
	}
	for group := range w.latched {
		if _, ok := groups[group]; !ok { // the group was removed: a later group of this name is new
			delete(w.latched, group)
			delete(w.calm, group)
		}
	}
	if len(now) != len(groups) {
		return fmt.Errorf("%d groups, want %d", len(now), len(groups))
	}
	for group, members := range groups {
		want := w.judge(group, members, r.At)
		if got := now[group]; got.Verdict != want || got.Latched() != w.latched[group] || (got.Cause == "") != (want == Seen) {
			return fmt.Errorf("%s is %+v, want %s", group, got, want)
		}
	}
	return nil
}

// judge tries every possible number of silent members among the unheard ones.
func (w *witness) judge(group Group, members []Member, at time.Time) Verdict {
	n, silent, unheard := len(members), 0, 0
	for _, m := range members {
		if m.Heard.IsZero() {
			unheard++
		} else if at.Sub(m.Heard) >= silence {
			silent++
		}
	}
	if n < 2 {
		delete(w.latched, group)
		delete(w.calm, group)
		return Seen
	}
	entering, staying := 0, 0
	for more := range unheard + 1 {
		if float64(silent+more)/float64(n) >= w.settings.Enter {
			entering++
		}
		if float64(silent+more)/float64(n) >= w.settings.Leave {
			staying++
		}
	}
	if w.latched[group] {
		if staying > 0 {
			w.calm[group] = 0
			return Lost
		}
		if w.calm[group]++; w.calm[group] == 1 {
			w.calmFrom[group] = at
		}
		if w.calm[group] < w.settings.Calm || at.Before(w.calmFrom[group].Add(w.settings.Quiet)) {
			return Lost
		}
		delete(w.latched, group)
		delete(w.calm, group)
		return Seen
	}
	switch {
	case entering == unheard+1:
		w.latched[group] = true
		return Lost
	case entering > 0:
		return Unknown
	}
	return Seen
}
