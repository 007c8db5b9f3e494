package session

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sonde-mesh/sonde/agents/observed"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/testing/agentstest"
)

// fuzzSessions returns the sessions of a control plane with one Dataplane, the subject. It ends with the test.
func fuzzSessions(f testing.TB) (*Sessions, identity.Subject) {
	f.Helper()
	p := agentstest.New(f)
	known, err := observed.New(observed.Options{
		Authority: p.Authority, Storage: p.State, View: p.Builder.View, Observe: p.Builder.Observe, Logger: slog.New(slog.DiscardHandler), Now: time.Now,
	})
	if err != nil {
		f.Fatal(err)
	}
	s, err := New(Options{
		Opened: func(mesh.ID, string) {}, Ended: func(mesh.ID, time.Time) {},
		Authority: p.Authority, Observed: known, View: p.Builder.View, Reported: func(context.Context, string) {}, ProbeFailed: func(identity.Subject, *agentv1.ProbeFailure) {}, CallsRefused: func(identity.Subject, *agentv1.Refusal) {}, Restarts: noRestarts{},
		Logger: slog.New(slog.DiscardHandler), Now: time.Now, Limits: DefaultLimits(),
	})
	if err != nil {
		f.Fatal(err)
	}
	return s, p.Subject
}

// noRestarts grants no restarts.
type noRestarts struct{}

func (noRestarts) Of(mesh.ID) *agentv1.Restarts { return nil }
func (noRestarts) Held(mesh.ID)                 {}

func fuzzEncoded(f *testing.F, m proto.Message) []byte {
	f.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	return data
}

// fuzzStream is the stream of a session whose messages come from the test. It drops messages to the agent.
type fuzzStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // grpc.ServerStream has one
}

func (s fuzzStream) Context() context.Context           { return s.ctx }
func (fuzzStream) Send(*agentv1.ControlMessage) error   { return nil }
func (fuzzStream) Recv() (*agentv1.AgentMessage, error) { return nil, io.EOF }

// FuzzSession sends the messages of one session, each after its length. No message causes a panic or an internal error,
// and no state remains after the session has ended.
func FuzzSession(f *testing.F) {
	s, subject := fuzzSessions(f)
	sequence := func(messages ...*agentv1.AgentMessage) {
		var data []byte
		for _, m := range messages {
			data = protowire.AppendBytes(data, fuzzEncoded(f, m))
		}
		f.Add(data)
	}
	hello := &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Hello{Hello: &agentv1.Hello{
		Version: &agentv1.Version{Sonde: "1"}, Features: features, InUse: &agentv1.InUse{BundleId: "a", LeafSerial: "1"},
	}}}
	sequence(hello)
	sequence(hello, hello)
	sequence(&agentv1.AgentMessage{}, hello,
		&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Draining{Draining: &agentv1.Draining{}}},
		&agentv1.AgentMessage{Message: &agentv1.AgentMessage_InUse{InUse: &agentv1.InUse{BundleId: "b"}}},
		&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Version{Version: &agentv1.Version{Envoy: "1.40.0"}}},
		&agentv1.AgentMessage{Message: &agentv1.AgentMessage_ProbeFailures{ProbeFailures: &agentv1.ProbeFailures{}}},
		&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Readiness{Readiness: &agentv1.Readiness{}}},
		&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Liveness{Liveness: &agentv1.Liveness{Held: []*agentv1.HeldLiveness{{Container: "app", Reason: "refused"}}}}},
		&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Verdicts{Verdicts: &agentv1.Verdicts{Probes: []*agentv1.ProbeVerdicts{{
			Container: "app", Probe: "readiness", Total: 1, Changes: []*agentv1.VerdictChange{{Verdict: agentv1.VerdictChange_FAILURE, Ago: durationpb.New(time.Second)}}, Reason: "refused",
		}}}}},
		&agentv1.AgentMessage{Message: &agentv1.AgentMessage_EnvoyState{EnvoyState: &agentv1.EnvoyState{Down: "exit status 1"}}})
	f.Fuzz(func(t *testing.T, data []byte) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			messages := make(chan received)
			var sending sync.WaitGroup
			sending.Go(func() { sendFuzzed(ctx, data, messages) })
			err := s.converseFuzzed(ctx, subject, messages)
			cancel()
			sending.Wait()
			if code := status.Code(err); code == codes.Internal || code == codes.Unknown || code == codes.DeadlineExceeded {
				t.Fatalf("the session ends with %v", err)
			}
			if len(s.sessions) > 0 {
				t.Fatal("a session remains")
			}
		})
	})
}

// sendFuzzed passes on the messages in data, and then the end.
func sendFuzzed(ctx context.Context, data []byte, to chan<- received) {
	for {
		r := received{err: io.EOF}
		if body, n := protowire.ConsumeBytes(data); n >= 0 {
			m := &agentv1.AgentMessage{}
			if data = data[n:]; proto.Unmarshal(body, m) == nil {
				r = received{message: m}
			}
		}
		select {
		case to <- r:
		case <-ctx.Done():
			return
		}
		if r.err != nil {
			return
		}
	}
}

// converseFuzzed does what Session does with an authenticated agent.
func (s *Sessions) converseFuzzed(ctx context.Context, subject identity.Subject, messages <-chan received) error {
	hello, err := s.awaitHello(ctx, messages)
	if err != nil {
		return ended(err)
	}
	sess := s.newSession(identity.Peer{Subject: subject, NotAfter: s.o.Now().Add(time.Hour)}, hello, fuzzStream{ctx: ctx})
	if _, err := s.openSession(sess); err != nil {
		return err
	}
	defer s.closeSession(sess)
	return s.serve(sess, hello, messages)
}
