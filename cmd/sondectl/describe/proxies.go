// Package describe formats the admin API's answers as text, the same in every command.
package describe

import (
	"fmt"
	"iter"
	"strings"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// Connection describes why an agent or its Envoy is not connected; "" if both are. It omits agents that never joined:
// the endpoint has that reason.
func Connection(p *adminv1.Proxy) string {
	state := p.GetAgentState()
	down := p.GetAgent().GetEnvoyDown()
	switch phase := state.GetPhase(); {
	case phase == adminv1.AgentState_CONNECTED && down != "":
		return "its Envoy does not run: " + down
	case phase == adminv1.AgentState_LOST:
		return fmt.Sprintf("not connected: the agent has been lost for %s, its endpoint remains", Since(state.GetSince()))
	case phase == adminv1.AgentState_STOPPED:
		return fmt.Sprintf("not connected: the agent drained and stopped %s ago", Since(state.GetSince()))
	case phase == adminv1.AgentState_RECONNECTING:
		return "not connected: the session has just ended, or the control plane has just started, and the agent has not reconnected yet"
	case phase == adminv1.AgentState_CONNECTED && len(p.GetStreams()) == 0:
		return "its Envoy has no connection to this replica of the control plane"
	}
	return ""
}

// DrainReported describes a drain without a known reason.
const DrainReported = "draining: its agent or its owner has reported that it is stopping"

// Health returns a health as one word in lower case.
func Health(h adminv1.Endpoint_Health) string {
	return strings.ReplaceAll(strings.ToLower(h.String()), "_", "-")
}

// HealthText is Health for use in a sentence.
func HealthText(h adminv1.Endpoint_Health) string { return strings.ReplaceAll(Health(h), "-", " ") }

// Serves reports whether an endpoint gets traffic. Older control planes never report that.
func Serves(e *adminv1.Endpoint) bool {
	return e.GetGetsTraffic() || e.GetHealth() == adminv1.Endpoint_READY
}

// Phase returns the phase as one word in lower case, "" if it is unspecified.
func Phase(s *adminv1.AgentState) string {
	if s.GetPhase() == adminv1.AgentState_PHASE_UNSPECIFIED {
		return ""
	}
	return strings.ReplaceAll(strings.ToLower(s.GetPhase().String()), "_", "-")
}

// Nacks returns the resources that an Envoy rejects, each with its kind.
func Nacks(p *adminv1.Proxy) iter.Seq2[string, *adminv1.Nack] {
	return func(yield func(string, *adminv1.Nack) bool) {
		for _, stream := range p.GetStreams() {
			for _, t := range stream.GetTypes() {
				for _, nack := range t.GetNacks() {
					if !yield(t.GetKind(), nack) {
						return
					}
				}
			}
		}
	}
}

// Nack describes a resource that an Envoy rejects, and why.
func Nack(kind string, nack *adminv1.Nack) string {
	resource := nack.GetResource()
	if resource == "" {
		resource = "(Envoy does not say which)"
	}
	return fmt.Sprintf("refused: %s %s: %s", kind, resource, nack.GetReason())
}

// Outbound is the address of an outbound, and its service if known.
func Outbound(o *adminv1.OutboundHealth) string {
	if o.GetService() == "" {
		return o.GetAddress()
	}
	return o.GetAddress() + " (" + o.GetService() + ")"
}
