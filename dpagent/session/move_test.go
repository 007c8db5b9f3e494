package session

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// moving is a control plane that welcomes each session and asks for another one after some time. It counts the messages
// that it gets.
type moving struct {
	after  time.Duration
	orders bool // it ends the session in an orderly way; otherwise the connection breaks
	opened []time.Time
	sent   []*agentv1.AgentMessage
}

type movingStream struct {
	agentv1.AgentService_SessionClient
	m        *moving
	ctx      context.Context //nolint:containedctx // a stream has a context
	welcomed bool
	closed   chan struct{}
}

func (s *movingStream) Send(m *agentv1.AgentMessage) error {
	select {
	case <-s.closed:
		panic("a message after CloseSend")
	default:
	}
	s.m.sent = append(s.m.sent, m)
	return nil
}

func (s *movingStream) CloseSend() error {
	close(s.closed)
	return nil
}

func (s *movingStream) Recv() (*agentv1.ControlMessage, error) {
	if !s.welcomed {
		s.welcomed = true
		return welcome(features...), nil
	}
	select {
	case <-s.closed:
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
	if !s.m.orders {
		return nil, errors.New("the connection is gone")
	}
	return nil, io.EOF
}

// Session implements Opener.
func (m *moving) Session(ctx context.Context, use func(agentv1.AgentService_SessionClient, <-chan struct{}) error) error {
	m.opened = append(m.opened, time.Now())
	goAway := make(chan struct{})
	timer := time.AfterFunc(m.after, func() { close(goAway) })
	defer timer.Stop()
	return use(&movingStream{m: m, ctx: ctx, closed: make(chan struct{})}, goAway)
}

type noIdentity struct{}

func (noIdentity) InUse() *agentv1.InUse       { return nil }
func (noIdentity) Trust(*agentv1.Bundle) error { return nil }

// TestSessionMoves checks that the agent reopens a session at once and quietly if the control plane asks for that, but
// never without a pause if the control plane asks again and again.
func TestSessionMoves(t *testing.T) {
	const age = 30 * time.Minute
	tests := map[string]struct {
		after    time.Duration
		orders   bool
		sessions int // number of sessions within ten ages
		gap      bool
		warned   bool
	}{
		"in order":            {after: age, orders: true, sessions: 10},
		"the connection ends": {after: age, sessions: 10, gap: true, warned: true},
		"at once":             {after: time.Millisecond, orders: true, sessions: 10 * int(age/(7*time.Second)), gap: true, warned: true},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			var log bytes.Buffer
			m := &moving{after: tc.after, orders: tc.orders}
			s := newSession(func(mesh.Drain) {}, nil)
			s.o.Opener, s.o.Identity, s.o.Logger = m, noIdentity{}, slog.New(slog.NewTextHandler(&log, nil))
			s.o.Version, s.o.Renew = func() *agentv1.Version { return nil }, func() {}
			s.o.Reports = []Report{NewFailures().Report(), NewReadiness().Report(), NewEnvoyState().Report()}
			ctx, cancel := context.WithTimeout(t.Context(), 10*age-time.Second)
			defer cancel()
			if err := s.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Run() = %v", err)
			}
			if n := len(m.opened); n > tc.sessions || n < min(tc.sessions, 10) {
				t.Errorf("%d sessions, want %d", n, tc.sessions)
			}
			for i := range m.opened[1:] {
				if gap := m.opened[i+1].Sub(m.opened[i]) - tc.after; (gap > 0) != tc.gap {
					t.Fatalf("the session after number %d opened %s later", i, gap)
				}
			}
			if warned := strings.Contains(log.String(), "level=WARN"); warned != tc.warned {
				t.Errorf("the log warns: %t, want %t:\n%s", warned, tc.warned, log.String()[:min(log.Len(), 1000)])
			}
			if n := strings.Count(log.String(), `msg="session open"`); n != 1 && !tc.warned {
				t.Errorf("the log has %d lines about an open session, want 1", n)
			}
		})
	}
}
