// Package podevents records events about pods for problems of their agents and Envoys: rejected joins, failed probes
// and rejected listeners.
package podevents

import (
	"github.com/sonde-mesh/sonde/agents/join"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/source"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/podcause"
)

// Events records the events. A nil *Events is valid and records none.
type Events struct {
	// Pod returns a pod, nil if it is unknown.
	Pod func(watch.Key) *source.Pod
	// Record queues an event. It returns at once.
	Record func(events.Event)
}

// podOf returns the pod that currently has a Dataplane of that name, nil if it is unknown.
func (e *Events) podOf(dataplane string) (watch.Key, *source.Pod) {
	namespace, name, ok := mesh.ObjectOf(dataplane)
	if e == nil || !ok {
		return watch.Key{}, nil
	}
	key := watch.Key{Namespace: namespace, Name: name}
	return key, e.Pod(key)
}

// aboutContainer returns an event about a container of a pod, without reason and note.
func aboutContainer(key watch.Key, p *source.Pod, container string) events.Event {
	return events.Event{
		Kind: "Pod", APIVersion: "v1", Namespace: key.Namespace, Name: key.Name, UID: p.UID,
		FieldPath: p.FieldPath(container),
	}
}

// Refused records an event about a rejected join. It is about the pod that the token names, or about the pod with the
// caller's address. For other callers, there is no event.
func (e *Events) Refused(r join.Refusal) {
	if r.Waiting && !r.Lasting {
		return // each new pod may wait a little
	}
	key, p := e.podOf(r.Dataplane)
	if p == nil || r.Authenticated && string(p.UID) != r.Instance || !r.Authenticated && p.Address != r.Peer {
		return
	}
	event := aboutContainer(key, p, mesh.ContainerSidecar)
	// The code is part of the action, so that different errors are different series.
	event.Reason, event.Action, event.Note = podcause.JoinRefused, "Join"+r.Code, podcause.Refused(r.Reason)
	if r.Waiting {
		event.Reason, event.Note = podcause.JoinWaiting, podcause.Waits(r.Reason)
	}
	e.Record(event)
}

// Absent returns the problem of a pod beyond its namespace's share of memory, "" for any other pod.
func (e *Events) Absent(who identity.Subject) string {
	_, p := e.podOf(who.Dataplane)
	if p == nil || !p.Beyond || string(p.UID) != who.Instance {
		return ""
	}
	return "its pod " + p.Problem
}

// ProbeFailed records an event about a failed probe, with the reason that the kubelet would have given: the kubelet's
// own event only has an HTTP status.
func (e *Events) ProbeFailed(proxy identity.Subject, f *agentv1.ProbeFailure) {
	key, p := e.podOf(proxy.Dataplane)
	if p == nil || string(p.UID) != proxy.Instance {
		return
	}
	event := aboutContainer(key, p, f.GetContainer())
	event.Reason, event.Action = podcause.ProbeFailed, f.GetClass()
	event.Note = podcause.Failure{Probe: f.GetProbe(), Verdict: f.GetVerdict(), Reason: f.GetReason()}.String()
	e.Record(event)
}

// CallsRefused records an event about calls that the pod's Envoy refuses, but its application would accept. The caller
// calls it once per cause.
func (e *Events) CallsRefused(proxy identity.Subject, r *agentv1.Refusal) {
	key, p := e.podOf(proxy.Dataplane)
	if p == nil || string(p.UID) != proxy.Instance {
		return
	}
	event := aboutContainer(key, p, mesh.ContainerSidecar)
	event.Reason, event.Action, event.Note = podcause.CallsRefused, "Refuse"+r.GetCause(), podcause.Calls(r.Text())
	e.Record(event)
}

// ListenerRefused records an event about a listener that the pod's Envoy rejects. The caller calls it once per
// listener.
func (e *Events) ListenerRefused(id mesh.ID, listener, reason string) {
	_, name := mesh.SplitID(id)
	key, p := e.podOf(name)
	if p == nil {
		return
	}
	event := aboutContainer(key, p, mesh.ContainerSidecar)
	// The listener is part of the action, so that different listeners are different series.
	event.Reason, event.Action = podcause.ListenerRefused, "Listen"+listener
	event.Note = podcause.Listener(listener, reason)
	e.Record(event)
}
