package restarts

import (
	"testing"
	"testing/synctest"
	"time"
)

// An agent must know that a grant has ended after 15 s with a session and without a fault, however
// long that takes.
func TestMustKnow(t *testing.T) {
	tests := map[string]struct {
		hindered []int // seconds after the end of the grant
		lost     bool
		session  int // seconds after it, when the session started
		at       int
		want     bool
	}{
		"too early":                           {at: 14},
		"calm":                                {at: 15, want: true},
		"calm first":                          {hindered: []int{15, 20}, at: 21, want: true},
		"calm before the end":                 {hindered: []int{-20, 5}, at: 19},
		"API server away":                     {hindered: []int{10, 20, 30, 40}, at: 54},
		"calm after the outage":               {hindered: []int{10, 20, 30, 40}, at: 55, want: true},
		"session lost":                        {lost: true, at: 600},
		"session starts later":                {session: 30, at: 44},
		"calm since the start of the session": {session: 30, at: 45, want: true},
		"outage in a new session":             {session: 30, hindered: []int{40}, at: 54},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				after := func(seconds int) time.Duration { return time.Duration(seconds) * time.Second }
				over := time.Now()
				s, p := &simulation{}, &pod{connected: over.Add(after(tc.session))}
				for _, seconds := range tc.hindered {
					s.hinders = append(s.hinders, over.Add(after(seconds)))
				}
				if tc.lost {
					p.lost = over
				}
				time.Sleep(after(tc.at))
				if got := s.mustKnow(p, over); got != tc.want {
					t.Errorf("mustKnow() %ds after = %t, want %t", tc.at, got, tc.want)
				}
			})
		})
	}
}
