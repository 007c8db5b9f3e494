package session

import (
	"cmp"
	"fmt"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// publishing is why endpoints do not count as ready yet.
const publishing = "a change of the endpoints is on its way to other proxies"

// Publishing says that a change of the health of these proxies' inbounds is on its way to other proxies. Until the function is called that it
// returns, their agents are not told that others know of it. The view of the change may only be the current one once Publishing has returned.
func (s *Sessions) Publishing(proxies []mesh.ID) (taken func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range proxies {
		s.publishing[id]++
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, id := range proxies {
			if s.publishing[id]--; s.publishing[id] == 0 {
				delete(s.publishing, id)
			}
			if sess := s.sessions[id]; sess != nil {
				sess.wake.Set()
			}
		}
	}
}

// endpoints returns what the agent of a proxy should know of its endpoints, nil while that is not known.
func (s *Sessions) endpoints(id mesh.ID) *agentv1.ControlMessage {
	_, p := s.o.View().Proxy(id)
	if p == nil {
		return nil
	}
	s.mu.Lock()
	onItsWay := s.publishing[id] > 0 || s.o.Observed.Of(id) != p.Observed
	s.mu.Unlock()
	onItsWay = onItsWay || s.o.Peers.Behind(id)
	switch {
	case p.Dataplane.IsPod(): // the kubelet may wait for the agent
		return endpointsMessage("")
	case onItsWay:
		return endpointsMessage(publishing)
	}
	if reason, _ := s.unreached(id); reason != "" {
		return endpointsMessage(reason)
	}
	for i, h := range p.Inbounds {
		at := p.Dataplane.InboundAddress(&p.Dataplane.Spec.Networking.Inbound[i])
		switch h.Reason {
		case meshview.NeverJoined:
			return endpointsMessage("the proxy has not joined")
		case meshview.ApplicationNotReady: // it may have passed meanwhile
			return endpointsMessage(fmt.Sprintf("%s is not ready: %s", at, cmp.Or(s.o.Observed.NotServing(id)[at], publishing)))
		}
	}
	return endpointsMessage("")
}

// endpointsMessage says why the endpoints are not ready, "" if they are.
func endpointsMessage(reason string) *agentv1.ControlMessage {
	return &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Endpoints{Endpoints: &agentv1.Endpoints{Ready: reason == "", Reason: reason}}}
}
