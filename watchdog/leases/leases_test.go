package leases

import (
	"math/rand/v2"
	"testing"
	"time"
)

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// at returns a time of the test, in seconds.
func at(seconds float64) time.Time { return begin.Add(time.Duration(seconds * float64(time.Second))) }

// step is a reading of one node's lease: its time, and the lease's renewTime; without it, the reading has failed.
type step struct {
	at      float64
	renewed float64
	failed  bool
}

func TestHeard(t *testing.T) {
	const never = -1
	tests := map[string]struct {
		steps []step
		want  float64
	}{
		"the first reading":                       {[]step{{at: 0, renewed: -5}}, never},
		"never renewed":                           {[]step{{at: 0, renewed: -5}, {at: 10, renewed: -5}, {at: 20, renewed: -5}}, never},
		"renewed for the first time":              {[]step{{at: 0, renewed: -5}, {at: 10, renewed: 5}}, 10},
		"the least lag":                           {[]step{{at: 0, renewed: -5}, {at: 10, renewed: 9}, {at: 20, renewed: 17}}, 18},
		"a lesser lag":                            {[]step{{at: 0, renewed: -5}, {at: 10, renewed: 5}, {at: 20, renewed: 19}}, 20},
		"no longer renewed":                       {[]step{{at: 0, renewed: -5}, {at: 10, renewed: 9}, {at: 20, renewed: 9}, {at: 60, renewed: 9}}, 10},
		"a clock an hour behind":                  {[]step{{at: 0, renewed: -3605}, {at: 10, renewed: -3591}, {at: 20, renewed: -3583}}, 18},
		"a clock an hour ahead":                   {[]step{{at: 0, renewed: 3595}, {at: 10, renewed: 3609}, {at: 20, renewed: 3617}}, 18},
		"a clock that is set ahead":               {[]step{{at: 0, renewed: -5}, {at: 10, renewed: 9}, {at: 20, renewed: 3618}}, 20},
		"a clock that is set back":                {[]step{{at: 0, renewed: -5}, {at: 10, renewed: 9}, {at: 20, renewed: -3582}, {at: 30, renewed: -3573}}, 29},
		"a renewal that has taken long":           {[]step{{at: 0, renewed: -5}, {at: 10, renewed: 9}, {at: 20, renewed: 9.5}, {at: 30, renewed: 29}}, 30},
		"readings that fail are no silence":       {[]step{{at: 0, renewed: -5}, {at: 10, renewed: 9}, {at: 20, failed: true}, {at: 310, renewed: 9}}, 310},
		"silence after those that failed":         {[]step{{at: 0, renewed: -5}, {at: 10, renewed: 9}, {at: 20, failed: true}, {at: 310, renewed: 9}, {at: 350, renewed: 9}}, 310},
		"renewed while they failed":               {[]step{{at: 0, renewed: -5}, {at: 10, renewed: 9}, {at: 20, failed: true}, {at: 310, renewed: 300}}, 310},
		"renewed shortly before they failed":      {[]step{{at: 0, renewed: -5}, {at: 10, renewed: 9}, {at: 20, failed: true}, {at: 310, renewed: 12}, {at: 320, renewed: 12}}, 310},
		"never renewed, with those that failed":   {[]step{{at: 0, renewed: -5}, {at: 20, failed: true}, {at: 310, renewed: -5}}, never},
		"the first ones have failed, then silent": {[]step{{at: 0, failed: true}, {at: 10, renewed: 5}, {at: 20, renewed: 15}, {at: 90, renewed: 15}}, 20},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var tracker Tracker
			for _, s := range tc.steps {
				if s.failed {
					tracker.Missed()
					continue
				}
				tracker.Read(at(s.at), []Lease{{"a", at(s.renewed)}})
			}
			want := at(tc.want)
			if tc.want == never {
				want = time.Time{}
			}
			if got := tracker.Heard("a"); !got.Equal(want) {
				t.Errorf("heard at %s, want %s", got.Sub(begin), want.Sub(begin))
			}
		})
	}
}

// A node whose lease is deleted and created again starts again.
func TestForgets(t *testing.T) {
	var tracker Tracker
	tracker.Read(at(0), []Lease{{"a", at(0)}})
	tracker.Read(at(10), []Lease{{"a", at(10)}})
	tracker.Read(at(20), nil)
	tracker.Read(at(30), []Lease{{"a", at(30)}})
	if heard := tracker.Heard("a"); !heard.IsZero() || len(tracker.nodes) != 1 {
		t.Errorf("heard at %s, %d nodes: want none that was heard", heard, len(tracker.nodes))
	}
}

// For any clock of a node and any delays: Heard is never later than the reading, nor, after a renewal without delay,
// earlier than the true renewal by more than the steps of the node's clock.
func TestSchedules(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 29))
		skew := time.Duration(r.Int64N(int64(2*time.Hour))) - time.Hour
		var tracker Tracker
		read, renewed := begin, begin // true times
		for range 50 {
			before := read
			read = read.Add(10*time.Second + time.Duration(r.Int64N(int64(2*time.Second))))
			silent := r.IntN(5) == 0
			if !silent {
				renewed = before.Add(1 + time.Duration(r.Int64N(int64(read.Sub(before)))))
			}
			if r.IntN(20) == 0 {
				skew += time.Duration(r.Int64N(int64(20*time.Minute))) - 10*time.Minute
			}
			tracker.Read(read, []Lease{{"a", renewed.Add(skew)}})
			heard := tracker.Heard("a")
			if heard.After(read) {
				t.Fatalf("seed %d: heard %s after it was read", seed, heard.Sub(read))
			}
			if !heard.IsZero() && !silent && heard.Before(before) {
				t.Fatalf("seed %d: renewed after the reading before, but heard %s before that", seed, before.Sub(heard))
			}
		}
	}
}
