package dpagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// Limits on the response to a query.
const (
	viewTimeout = 30 * time.Second // for Envoy
	// longer than viewTimeout, so that the control plane learns whether Envoy or the agent timed out; shorter than the
	// control plane's own timeout
	answerTimeout = 35 * time.Second
	maxAnswerPart = 32 << 10 // bytes
)

// viewer shows Envoy's state.
type viewer interface {
	View(ctx context.Context, view mesh.EnvoyView, w io.Writer) error
}

// query accepts a query from the control plane, which sends one at a time but may have given up on earlier ones.
func (a *Agent) query(q *agentv1.Query) {
	select {
	case a.queries <- q:
	default:
		a.logger.Warn("dropped a query, too many queries are in progress", "view", q.GetView())
	}
}

// answerQueries answers queued queries until ctx ends.
func (a *Agent) answerQueries(ctx context.Context, envoy viewer) {
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-a.queries:
			if err := a.answer(ctx, q, envoy); err != nil && ctx.Err() == nil {
				a.logger.Warn("failed to answer a query", "view", q.GetView(), "err", err)
			}
		}
	}
}

// answer sends the control plane Envoy's response, or the error that prevented it.
func (a *Agent) answer(ctx context.Context, q *agentv1.Query, envoy viewer) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return a.client.Answer(ctx, func(stream agentv1.AgentService_AnswerClient) error {
		parts := &answerParts{stream: stream, query: q.GetId()}
		if err := viewOf(ctx, envoy, mesh.EnvoyView(q.GetView()), parts); err != nil && !parts.broken {
			return parts.send(&agentv1.AnswerPart{Error: err.Error()})
		}
		if !parts.begun && !parts.broken {
			return parts.send(&agentv1.AnswerPart{}) // Envoy's response is empty
		}
		return nil
	})
}

func viewOf(ctx context.Context, envoy viewer, view mesh.EnvoyView, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	err := envoy.View(ctx, view, w)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		return fmt.Errorf("envoy has not answered within %s", viewTimeout)
	}
	return err
}

// answerParts sends the data written to it to the control plane, in parts.
type answerParts struct {
	stream        agentv1.AgentService_AnswerClient
	query         string
	begun, broken bool
}

// Write implements io.Writer.
func (p *answerParts) Write(data []byte) (int, error) {
	written := 0
	for len(data) > 0 {
		n := min(len(data), maxAnswerPart)
		if err := p.send(&agentv1.AnswerPart{Data: data[:n]}); err != nil {
			return written, err
		}
		data, written = data[n:], written+n
	}
	return written, nil
}

func (p *answerParts) send(part *agentv1.AnswerPart) error {
	if !p.begun {
		part.Query, p.begun = p.query, true
	}
	if err := p.stream.Send(part); err != nil {
		p.broken = true
		return fmt.Errorf("send the answer: %w", err)
	}
	return nil
}
