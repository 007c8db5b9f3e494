package session

import (
	"cmp"
	"fmt"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// publishing is why endpoints do not count as ready before other proxies have the change.
const publishing = "a change of the endpoints is on its way to other proxies"

// Publishing records that a change of the health of these proxies' inbounds is on its way to other proxies. Until taken
// is called, it tells the agents that other proxies lack the change. Call Publishing before the view with the change
// becomes current.
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

// endpoints returns the state of a proxy's endpoints for its agent, nil while that is unknown.
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
		case meshview.ApplicationNotReady: // NotServing is empty if the application has become ready since
			return endpointsMessage(fmt.Sprintf("%s is not ready: %s", at, cmp.Or(s.o.Observed.NotServing(id)[at], publishing)))
		}
	}
	return endpointsMessage("")
}

// endpointsMessage returns the message with the reason why endpoints are not ready, "" if they are.
func endpointsMessage(reason string) *agentv1.ControlMessage {
	return &agentv1.ControlMessage{
		Message: &agentv1.ControlMessage_Endpoints{Endpoints: &agentv1.Endpoints{Ready: reason == "", Reason: reason}}}
}
