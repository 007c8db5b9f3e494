package session

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/run"
)

// reported is a control plane that records when reports arrive. Each of its sessions lasts for a time.
type reported struct {
	features []string
	lasts    time.Duration
	began    time.Time
	sessions int
	sent     []string
}

func (r *reported) Session(ctx context.Context, use func(agentv1.AgentService_SessionClient, <-chan struct{}) error) error {
	if r.sessions++; r.sessions == 1 {
		r.began = time.Now()
	}
	ctx, cancel := context.WithTimeout(ctx, r.lasts)
	defer cancel()
	return use(&reportedStream{r: r, ctx: ctx}, nil)
}

type reportedStream struct {
	agentv1.AgentService_SessionClient
	r        *reported
	ctx      context.Context //nolint:containedctx // a stream has a context
	welcomed bool
}

func (s *reportedStream) Recv() (*agentv1.ControlMessage, error) {
	if !s.welcomed {
		s.welcomed = true
		return welcome(s.r.features...), nil
	}
	<-s.ctx.Done()
	return nil, s.ctx.Err()
}

func (s *reportedStream) Send(m *agentv1.AgentMessage) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	switch {
	case m.GetHello() != nil:
	case s.r.sessions > 1:
		s.r.sent = append(s.r.sent, fmt.Sprint("session ", s.r.sessions))
	default:
		s.r.sent = append(s.r.sent, time.Since(s.r.began).String())
	}
	return nil
}

func TestReports(t *testing.T) {
	const second = time.Second
	tests := map[string]struct {
		features []string
		lasts    time.Duration // duration of a session
		report   Report
		due      []time.Duration // times since the first session began
		drain    time.Duration
		want     []string
	}{
		"to a control plane without support": {nil, time.Hour, Report{Feature: "a"}, []time.Duration{second}, 0, nil},
		"at once":                            {[]string{"a"}, time.Hour, Report{Feature: "a", Interval: 10 * second}, []time.Duration{second}, 0, []string{"1s"}},
		"one after a pause":                  {[]string{"a"}, time.Hour, Report{Feature: "a", Interval: 10 * second}, []time.Duration{second, 2 * second, 3 * second}, 0, []string{"1s", "11s"}},
		"without a pause":                    {[]string{"a"}, time.Hour, Report{Feature: "a"}, []time.Duration{second, 2 * second, 3 * second}, 0, []string{"1s", "2s", "3s"}},
		"in the next session": {
			[]string{"a"}, 5 * second, Report{Feature: "a", Interval: 10 * second}, []time.Duration{second, 2 * second}, 0, []string{"1s", "session 2"},
		},
		"the drain ends the pause":         {[]string{"a"}, time.Hour, Report{Feature: "a", Interval: time.Minute, AtDrain: true}, []time.Duration{second, 2 * second}, 4 * second, []string{"1s", "4s", "4s"}},
		"the drain does not end the pause": {[]string{"a"}, time.Hour, Report{Feature: "a", Interval: time.Minute}, []time.Duration{second, 2 * second}, 4 * second, []string{"1s", "4s", "1m1s"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				plane := &reported{features: tc.features, lasts: tc.lasts}
				s := newSession(func(mesh.Drain) {}, nil)
				tc.report.Due = run.NewSignal()
				tc.report.Message = func() *agentv1.AgentMessage { return &agentv1.AgentMessage{} }
				s.o.Opener, s.o.Identity, s.o.Reports = plane, noIdentity{}, []Report{tc.report}
				s.o.Version, s.o.Renew = func() *agentv1.Version { return nil }, func() {}
				for _, at := range tc.due {
					time.AfterFunc(at, tc.report.Due.Set)
				}
				if tc.drain > 0 {
					time.AfterFunc(tc.drain, s.startDrain)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				_ = s.Run(ctx) // until the time is over
				if diff := cmp.Diff(tc.want, plane.sent); diff != "" {
					t.Errorf("reported (-want +got):\n%s", diff)
				}
			})
		})
	}
}
