package session

import (
	"context"
	"errors"
	"io"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/agents/call"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// received is a message, or the error that ended the stream.
type received struct {
	message *agentv1.AgentMessage
	err     error
}

// receive reads messages until the stream ends, at the latest when the handler returns.
func (s *Sessions) receive(stream agentv1.AgentService_SessionServer) <-chan received {
	messages := make(chan received)
	s.running.Go(func() {
		pace := rate.NewLimiter(messageRate, messageBurst)
		for {
			var r received
			if r.err = pace.Wait(stream.Context()); r.err == nil {
				r.message, r.err = stream.Recv()
			}
			select {
			case messages <- r:
			case <-stream.Context().Done():
				return
			}
			if r.err != nil {
				return
			}
		}
	})
	return messages
}

// awaitHello waits for the first message. The error is io.EOF if the agent ends the session first. It ignores unknown
// messages, as the rest of the session does.
func (s *Sessions) awaitHello(ctx context.Context, messages <-chan received) (*agentv1.Hello, error) {
	late := time.NewTimer(s.o.Limits.Hello)
	defer late.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-s.stopping:
			return nil, errStopping
		case <-late.C:
			return nil, status.Errorf(codes.DeadlineExceeded, "no Hello within %s", s.o.Limits.Hello)
		case r := <-messages:
			if r.err != nil {
				return nil, r.err
			}
			switch m := r.message.GetMessage().(type) {
			case nil:
				s.metrics.unknown.Inc()
			case *agentv1.AgentMessage_Hello:
				err := checkHello(m.Hello)
				if err == nil {
					s.countUnknown(m.Hello)
				}
				return m.Hello, err
			default:
				return nil, status.Error(codes.InvalidArgument, "the first message of a session must be Hello")
			}
		}
	}
}

// countUnknown counts unknown features and fields of a Hello, as later versions of the agent send them.
func (s *Sessions) countUnknown(h *agentv1.Hello) {
	s.metrics.unknownFeatures.Add(float64(agentv1.UnknownFeatures(h.GetFeatures())))
	if agentv1.HasUnknownFields(h) {
		s.metrics.unknownFields.Inc()
	}
}

func checkHello(h *agentv1.Hello) error {
	if err := call.CheckProcess(h.GetInstance()); err != nil {
		return err
	}
	if proto.Size(h) > maxMessage || len(h.GetFeatures()) > maxFeatures {
		return status.Errorf(codes.InvalidArgument, "Hello has more than %d bytes or more than %d features",
			maxMessage, maxFeatures)
	}
	for _, f := range h.GetFeatures() {
		if len(f) > call.MaxText {
			return status.Errorf(codes.InvalidArgument, "Hello has a feature of more than %d characters", call.MaxText)
		}
	}
	return nil
}

// ended returns the status of a session whose Recv failed with err.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// whyEnded describes the end of a session, from the handler's error. gRPC has several errors for a closed connection.
func whyEnded(err error) string {
	code := status.Code(err)
	switch {
	case err == nil:
		return "the agent ended its session"
	case errors.Is(err, context.Canceled), code == codes.Canceled,
		code == codes.Unavailable && !errors.Is(err, errStopping):
		return "the connection was lost"
	default:
		return status.Convert(err).Message()
	}
}
