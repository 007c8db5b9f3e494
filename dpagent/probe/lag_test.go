package probe

import (
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func TestLag(t *testing.T) {
	begin := time.Now()
	tests := map[string]struct {
		ticks []int // times of the ticks, in ms
		want  int   // ms
	}{
		"in time":                     {ticks: []int{100, 200, 300}},
		"stopped before the next one": {ticks: []int{100, 150}},
		"each a little late":          {ticks: []int{130, 260, 390}, want: 90},
		"once for long":               {ticks: []int{100, 900, 1000}, want: 700},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l := lag{interval: 100 * time.Millisecond, due: begin.Add(100 * time.Millisecond)}
			for _, at := range tc.ticks {
				l.count(begin.Add(time.Duration(at) * time.Millisecond))
			}
			if want := time.Duration(tc.want) * time.Millisecond; l.lost != want {
				t.Errorf("lost = %s, want %s", l.lost, want)
			}
		})
	}
}

func TestNoLag(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"a second": time.Second, "no timeout": 0} {
		virtual.Run(t, name, func(t *testing.T) {
			l := watchLag(timeout)
			<-time.After(950 * time.Millisecond)
			if lost := l.stop(); lost != 0 {
				t.Errorf("stop() = %s in virtual time, want 0", lost)
			}
		})
	}
}

func TestUnlessLate(t *testing.T) {
	const timeout = time.Second
	tests := map[string]struct {
		r          result
		took, lost time.Duration
		want       verdict
	}{
		"the time is over, and the agent was late":     {r: result{verdict: failure}, took: timeout, lost: 251 * time.Millisecond, want: errored},
		"the time is over, and the agent was in time":  {r: result{verdict: failure}, took: timeout, lost: 250 * time.Millisecond, want: failure},
		"a refused connection, and the agent was late": {r: result{verdict: failure}, took: timeout / 2, lost: timeout / 2, want: failure},
		"a status, and the agent was late":             {r: result{verdict: failure, status: 500}, took: 2 * timeout, lost: timeout, want: failure},
		"success, and the agent was late":              {r: result{verdict: success}, took: 2 * timeout, lost: timeout, want: success},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.r.unlessLate(tc.took, timeout, tc.lost).verdict; got != tc.want {
				t.Errorf("unlessLate() = %s, want %s", got, tc.want)
			}
		})
	}
	if got := (result{verdict: failure}).unlessLate(timeout, 0, 0).verdict; got != failure {
		t.Errorf("unlessLate() = %s without a timeout, want failure", got)
	}
}
