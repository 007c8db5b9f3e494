package events

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/runtime"
	kevents "k8s.io/client-go/tools/events"
)

// The API server refuses an event with a note that is too long, or that is not UTF-8.
func TestCut(t *testing.T) {
	tests := map[string]struct{ note, want string }{
		"short":             {"probe failed", "probe failed"},
		"as long as can be": {strings.Repeat("a", maxNote), strings.Repeat("a", maxNote)},
		"too long":          {strings.Repeat("a", maxNote+1), strings.Repeat("a", maxNote-4) + " …"},
		"cut in a letter":   {strings.Repeat("é", maxNote), strings.Repeat("é", (maxNote-4)/2) + " …"},
		"not UTF-8":         {"a\xffb", "a?b"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := cut(tc.note)
			if got != tc.want || len(got) > maxNote || !utf8.ValidString(got) {
				t.Errorf("cut() = %d bytes, %q", len(got), got)
			}
		})
	}
}

// counter counts events.
type counter struct {
	kevents.EventRecorder
	n int
}

func (c *counter) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {
	c.n++
}

// More events than the API server should get are dropped, and the log says so, once a minute.
func TestEventsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		written := &counter{}
		r := &Recorder{
			recorder: written, limit: rate.NewLimiter(eventsPerSecond, eventsBurst), warned: rate.NewLimiter(1.0/60, 1),
			log: slog.New(slog.NewTextHandler(&log, nil)),
		}
		for range eventsBurst + 100 {
			r.Record(Event{Reason: "ProbeFailed"})
		}
		if lines := strings.Count(log.String(), "events dropped"); written.n != eventsBurst || lines != 1 {
			t.Errorf("%d events and %d lines, want %d and 1", written.n, lines, eventsBurst)
		}
		<-time.After(2 * time.Second)
		for range 100 {
			r.Record(Event{Reason: "ProbeFailed"})
		}
		if want := eventsBurst + 2*eventsPerSecond; written.n != want {
			t.Errorf("%d events after two seconds, want %d", written.n, want)
		}
	})
}
