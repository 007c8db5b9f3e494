package heartbeat_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func TestLoop(t *testing.T) {
	const limit = 10 * time.Second
	tests := []struct {
		name  string
		turn  func(l *heartbeat.Loop)
		stuck bool
	}{
		{"never begun", func(*heartbeat.Loop) { <-time.After(time.Hour) }, false},
		{"waits", func(l *heartbeat.Loop) { l.Begin(); l.End(); <-time.After(time.Hour) }, false},
		{"works", func(l *heartbeat.Loop) { l.Begin(); <-time.After(limit) }, false},
		{"works for too long", func(l *heartbeat.Loop) { l.Begin(); <-time.After(limit + 1) }, true},
		{"works and beats", func(l *heartbeat.Loop) { l.Begin(); <-time.After(limit); l.Beat(); <-time.After(limit) }, false},
		{"beats no more", func(l *heartbeat.Loop) { l.Begin(); l.Beat(); <-time.After(limit + 1) }, true},
		{"next turn", func(l *heartbeat.Loop) { l.Begin(); <-time.After(limit); l.Begin(); <-time.After(limit) }, false},
		{"a beat while it waits is no turn", func(l *heartbeat.Loop) { l.Beat(); <-time.After(time.Hour) }, false},
	}
	for _, test := range tests {
		virtual.Run(t, test.name, func(t *testing.T) {
			l := heartbeat.New("reconcile", limit)
			test.turn(l)
			var stuck *heartbeat.StuckError
			if err := l.Check(); errors.As(err, &stuck) != test.stuck {
				t.Errorf("got %v, want stuck %t", err, test.stuck)
			}
		})
	}
}

func TestStuckError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := heartbeat.New("fan-out", time.Second)
		l.Begin()
		<-time.After(2 * time.Second)
		if err := l.Check(); err == nil || !strings.Contains(err.Error(), `loop "fan-out"`) {
			t.Errorf("a loop that hangs: %v", err)
		}
		l.End()
		if err := l.Check(); err != nil {
			t.Errorf("the loop works again: %v", err)
		}
	})
}

func TestNilLoop(t *testing.T) {
	t.Parallel()
	var l *heartbeat.Loop
	l.Begin()
	l.Beat()
	l.End()
}

func BenchmarkTurn(b *testing.B) {
	l := heartbeat.New("reconcile", time.Second)
	for b.Loop() {
		l.Begin()
		l.End()
	}
}
