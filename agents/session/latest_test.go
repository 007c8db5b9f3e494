package session

import (
	"slices"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// TestLatest adds reports at these times. A late report arrives when a waiting one is due, and is handled before it.
func TestLatest(t *testing.T) {
	tests := map[string]struct {
		reports []time.Duration
		late    bool // the last report is late
		want    []int
	}{
		"seldom":                     {[]time.Duration{0, time.Second, 2 * time.Second}, false, []int{0, 1, 2}},
		"often":                      {[]time.Duration{0, 100 * time.Millisecond, 200 * time.Millisecond}, false, []int{0, 2}},
		"often, and then one":        {[]time.Duration{0, 100 * time.Millisecond, 3 * time.Second}, false, []int{0, 1, 2}},
		"before what waits is taken": {[]time.Duration{0, 100 * time.Millisecond, time.Second}, true, []int{0, 2}},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			var l latest[int]
			var got []int
			began := time.Now()
			handle := func(until time.Duration) {
				end := time.After(time.Until(began.Add(until)))
				for {
					select {
					case <-l.tick():
						if m, waits := l.take(); waits {
							got = append(got, m)
						}
					case <-end:
						return
					}
				}
			}
			for i, at := range tc.reports {
				if tc.late && i == len(tc.reports)-1 {
					<-time.After(time.Until(began.Add(at)))
				} else {
					handle(at)
				}
				if l.add(i, time.Second) {
					got = append(got, i)
				}
			}
			handle(time.Minute)
			if !slices.Equal(got, tc.want) {
				t.Errorf("handled %v, want %v", got, tc.want)
			}
		})
	}
}
