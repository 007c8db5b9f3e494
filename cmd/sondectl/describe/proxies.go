// Package describe puts what the admin API says into words, which are the same in every command.
package describe

import (
	"fmt"
	"iter"
	"strings"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// Connection says that the agent of a proxy is not connected, or its Envoy is not; "" if they are. That no agent has ever joined is a
// reason of the endpoint.
func Connection(p *adminv1.Proxy) string {
	state := p.GetAgentState()
	down := p.GetAgent().GetEnvoyDown()
	switch phase := state.GetPhase(); {
	case phase == adminv1.AgentState_CONNECTED && down != "":
		return "its Envoy does not run: " + down
	case phase == adminv1.AgentState_LOST:
		return fmt.Sprintf("not connected: the agent is lost for %s, and the endpoint stays", Since(state.GetSince()))
	case phase == adminv1.AgentState_STOPPED:
		return fmt.Sprintf("not connected: the agent has drained, and ended %s ago", Since(state.GetSince()))
	case phase == adminv1.AgentState_RECONNECTING:
		return "not connected: the session has just ended, or the control plane has just started, and the agent has not come back yet"
	case phase == adminv1.AgentState_CONNECTED && len(p.GetStreams()) == 0:
		return "its Envoy has no connection to this replica of the control plane"
	}
	return ""
}

// Health returns a health as one word in lower case.
func Health(h adminv1.Endpoint_Health) string {
	return strings.ReplaceAll(strings.ToLower(h.String()), "_", "-")
}

// HealthText is Health in words of a sentence.
func HealthText(h adminv1.Endpoint_Health) string { return strings.ReplaceAll(Health(h), "-", " ") }

// Serves reports whether an endpoint gets traffic. A control plane of an older release says it of none.
func Serves(e *adminv1.Endpoint) bool {
	return e.GetGetsTraffic() || e.GetHealth() == adminv1.Endpoint_READY
}

// Phase returns the phase as one word in lower case, "" if the control plane does not say it.
func Phase(s *adminv1.AgentState) string {
	if s.GetPhase() == adminv1.AgentState_PHASE_UNSPECIFIED {
		return ""
	}
	return strings.ReplaceAll(strings.ToLower(s.GetPhase().String()), "_", "-")
}

// Nacks returns the resources that an Envoy refuses, each with its kind.
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

// Nack says that an Envoy refuses a resource, and why.
func Nack(kind string, nack *adminv1.Nack) string {
	resource := nack.GetResource()
	if resource == "" {
		resource = "(Envoy does not say which)"
	}
	return fmt.Sprintf("refused: %s %s: %s", kind, resource, nack.GetReason())
}

// Outbound is the address of an outbound, and its service where that is known.
func Outbound(o *adminv1.OutboundHealth) string {
	if o.GetService() == "" {
		return o.GetAddress()
	}
	return o.GetAddress() + " (" + o.GetService() + ")"
}
