package session

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/run"
)

// counting counts one more request for each report.
type counting struct {
	due run.Signal
	n   uint64
}

func (c *counting) Due() run.Signal { return c.due }

func (c *counting) All() { c.due.Set() }

func (c *counting) Report() *agentv1.Plaintext {
	c.n++
	return &agentv1.Plaintext{Inbounds: []*agentv1.PlaintextInbound{{Port: uint32(c.n)}}}
}

// asking is a control plane that welcomes a session, and asks for the counted traffic ten and twenty seconds later.
type asking struct {
	agentv1.AgentService_SessionClient
	ctx   context.Context //nolint:containedctx // a stream has a context
	began time.Time
	asked int
	sent  []string
}

func (s *asking) Send(m *agentv1.AgentMessage) error {
	if p := m.GetPlaintext(); p != nil {
		text := time.Since(s.began).String()
		if p.GetAsked() {
			text += " asked"
		}
		s.sent = append(s.sent, text)
		if int(p.GetInbounds()[0].GetPort()) != len(s.sent) {
			s.sent = append(s.sent, "an old report")
		}
	}
	return nil
}

func (s *asking) Recv() (*agentv1.ControlMessage, error) {
	s.asked++
	switch s.asked {
	case 1:
		return welcome(agentv1.FeaturePlaintext), nil
	case 2, 3:
		time.Sleep(10 * time.Second)
		return &agentv1.ControlMessage{Message: &agentv1.ControlMessage_AskPlaintext{AskPlaintext: &agentv1.AskPlaintext{}}}, nil
	}
	<-s.ctx.Done()
	return nil, s.ctx.Err()
}

// Session implements Opener.
func (s *asking) Session(ctx context.Context, use func(agentv1.AgentService_SessionClient, <-chan struct{}) error) error {
	s.ctx, s.began = ctx, time.Now()
	return use(s, nil)
}

// TestPlaintextIsSaidWhenAsked checks that an agent answers at once when asked, although its own reports come at most
// once a minute.
func TestPlaintextIsSaidWhenAsked(t *testing.T) {
	tests := map[string]struct {
		counts bool
		want   []string
	}{
		"it counts":         {true, []string{"0s", "10s asked", "20s asked"}},
		"it counts nothing": {false, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSession(func(mesh.Drain) {}, nil)
				plane := &asking{}
				s.o.Opener, s.o.Identity = plane, noIdentity{}
				if tc.counts {
					c := &counting{due: run.NewSignal()}
					s.o.Reports, s.o.Plaintext = []Report{PlaintextReport(c)}, c.Report
				}
				s.o.Version, s.o.Renew = func() *agentv1.Version { return nil }, func() {}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				_ = s.Run(ctx) // until the time is over
				if diff := cmp.Diff(tc.want, plane.sent); diff != "" {
					t.Errorf("what is sent (-want +got):\n%s", diff)
				}
			})
		})
	}
}
