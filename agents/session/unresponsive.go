package session

import (
	"context"
	"slices"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// unresponsiveTimeout bounds the wait for all agents, since a user waits for the answer.
const unresponsiveTimeout = 2 * time.Second

// Unresponsive sends a Ping to the agents of a mesh ("" for all) with a session here, and returns the proxies whose
// agents did not answer in time. Without a Ping, TCP detects a hanging host only half a minute later.
func (s *Sessions) Unresponsive(ctx context.Context, meshName string) []mesh.ID {
	ctx, cancel := context.WithTimeout(ctx, unresponsiveTimeout)
	defer cancel()
	waiting := map[mesh.ID]<-chan struct{}{}
	s.mu.Lock()
	for id, sess := range s.sessions {
		if (meshName == "" || sess.peer.Mesh == meshName) && sess.has(agentv1.FeaturePong) {
			waiting[id] = sess.rival.pong.ask(sess,
				&agentv1.ControlMessage{Message: &agentv1.ControlMessage_Ping{Ping: &agentv1.Ping{}}})
		}
	}
	s.mu.Unlock()
	var unresponsive []mesh.ID
	for id, answer := range waiting {
		if !answeredIn(ctx, answer) {
			unresponsive = append(unresponsive, id)
		}
	}
	slices.Sort(unresponsive)
	return unresponsive
}

// answeredIn waits for an answer until ctx ends. It counts an answer that arrived while the caller waited for other
// agents.
func answeredIn(ctx context.Context, answer <-chan struct{}) bool {
	select {
	case <-answer:
		return true
	case <-ctx.Done():
	}
	select {
	case <-answer:
		return true
	default:
		return false
	}
}
