package main

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

const day = 24 * time.Hour

// timeUntil returns how long it is until t, "" if t is nil. It is rounded to the nearest, so that what has just been made for 24h has 24h.
func timeUntil(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	left := time.Until(t.AsTime())
	if left <= 0 {
		return "expired"
	}
	for _, unit := range []time.Duration{day, time.Hour, time.Minute} {
		if rounded := left.Round(unit); left.Round(time.Second) >= 2*unit {
			return shortDuration(rounded)
		}
	}
	return shortDuration(left.Round(time.Second))
}

// timeSince returns how long ago t was, "" if t is nil.
func timeSince(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return shortDuration(max(0, time.Since(t.AsTime())))
}

// shortDuration formats a duration for a table, rounded down to one unit.
func shortDuration(d time.Duration) string {
	switch {
	case d >= 2*day:
		return fmt.Sprintf("%dd", d/day)
	case d >= 2*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%dm", d/time.Minute)
	default:
		return fmt.Sprintf("%ds", d/time.Second)
	}
}
