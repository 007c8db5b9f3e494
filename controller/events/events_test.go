package events

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/runtime"
	kevents "k8s.io/client-go/tools/events"
)

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
