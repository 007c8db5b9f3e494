package session

import agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"

// maxAsked limits unanswered requests: a control plane has one open request of each kind, and requests of a previous
// session may remain.
const maxAsked = 4

// ask queues a request of the control plane. A query for Envoy is answered concurrently.
func (s *Session) ask(question *agentv1.ControlMessage) {
	switch {
	case question.GetQuery() != nil:
		s.o.Query(question.GetQuery())
		return
	case question.GetAskPlaintext() != nil && s.o.Plaintext == nil:
		return // the control plane has not read this agent's features
	}
	select {
	case s.asked <- question:
	default: // for the control plane, the request stays unanswered
	}
}

// answer returns the response to a request.
func (s *Session) answer(question *agentv1.ControlMessage) *agentv1.AgentMessage {
	if question.GetAskPlaintext() != nil {
		m := s.o.Plaintext()
		m.Asked = true
		return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Plaintext{Plaintext: m}}
	}
	return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Pong{Pong: &agentv1.Pong{}}}
}
