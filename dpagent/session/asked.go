package session

import agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"

// maxAsked questions wait to be answered: a control plane has one open of each kind, and those of a session before may still be there.
const maxAsked = 4

// ask queues a question of the control plane. A Query to Envoy is answered concurrently.
func (s *Session) ask(question *agentv1.ControlMessage) {
	switch {
	case question.GetQuery() != nil:
		s.o.Query(question.GetQuery())
		return
	case question.GetAskPlaintext() != nil && s.o.Plaintext == nil:
		return // the control plane has not read which features this agent has
	}
	select {
	case s.asked <- question:
	default: // the control plane takes it for one that the agent does not answer
	}
}

// answer returns what ask asked for.
func (s *Session) answer(question *agentv1.ControlMessage) *agentv1.AgentMessage {
	if question.GetAskPlaintext() != nil {
		m := s.o.Plaintext()
		m.Asked = true
		return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Plaintext{Plaintext: m}}
	}
	return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Pong{Pong: &agentv1.Pong{}}}
}
