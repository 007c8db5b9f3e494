package describe

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

const day = 24 * time.Hour

// Until returns the time until t, "" if t is nil. It rounds to the nearest unit, so that a new 24h certificate shows
// 24h.
func Until(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	left := time.Until(t.AsTime())
	if left <= 0 {
		return "expired"
	}
	for _, unit := range []time.Duration{day, time.Hour, time.Minute} {
		if rounded := left.Round(unit); left.Round(time.Second) >= 2*unit {
			return printer.ShortDuration(rounded)
		}
	}
	return printer.ShortDuration(left.Round(time.Second))
}

// Since returns how long ago t was, "" if t is nil.
func Since(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return printer.ShortDuration(max(0, time.Since(t.AsTime())))
}

// At returns a time for JSON in whole seconds, nil for an unknown one.
func At(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	at := t.AsTime().Truncate(time.Second)
	return &at
}
