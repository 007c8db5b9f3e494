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

// Limits of the answer to a query.
const (
	viewTimeout   = 30 * time.Second // of Envoy
	answerTimeout = 35 * time.Second // more, so that the control plane learns which of the two took too long, and less than the control plane's
	maxAnswerPart = 32 << 10         // bytes
)

// viewer shows what Envoy says of itself.
type viewer interface {
	View(ctx context.Context, view mesh.EnvoyView, w io.Writer) error
}

// query takes a query of the control plane, which has one open at a time, and may have given up others.
func (a *Agent) query(q *agentv1.Query) {
	select {
	case a.queries <- q:
	default:
		a.logger.Warn("query dropped, another one is being answered", "view", q.GetView())
	}
}

// answerQueries answers queries until ctx ends.
func (a *Agent) answerQueries(ctx context.Context, envoy viewer) {
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-a.queries:
			if err := a.answer(ctx, q, envoy); err != nil && ctx.Err() == nil {
				a.logger.Warn("query not answered", "view", q.GetView(), "err", err)
			}
		}
	}
}

// answer sends the control plane what Envoy says, or why it says nothing.
func (a *Agent) answer(ctx context.Context, q *agentv1.Query, envoy viewer) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return a.client.Answer(ctx, func(stream agentv1.AgentService_AnswerClient) error {
		parts := &answerParts{stream: stream, query: q.GetId()}
		if err := viewOf(ctx, envoy, mesh.EnvoyView(q.GetView()), parts); err != nil && !parts.broken {
			return parts.send(&agentv1.AnswerPart{Error: err.Error()})
		}
		if !parts.begun && !parts.broken {
			return parts.send(&agentv1.AnswerPart{}) // Envoy has said nothing
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

// answerParts sends what is written to it.
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
