package session

import (
	"sync"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// question is a request to the agent of a session. All callers wait for the same answer.
type question struct {
	mu       sync.Mutex
	answered chan struct{} // closed by the next answer; nil if no caller waits for one
}

// ask returns a channel that the next answer closes, nil if the outbox is full. It sends the message unless another
// caller already waits.
func (q *question) ask(sess *session, m *agentv1.ControlMessage) <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.answered == nil && sess.send(m) {
		q.answered = make(chan struct{})
	}
	return q.answered
}

// open reports whether a caller waits.
func (q *question) open() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.answered != nil
}

func (q *question) answer() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.answered != nil {
		close(q.answered)
		q.answered = nil
	}
}
