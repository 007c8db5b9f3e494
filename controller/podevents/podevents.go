// Package podevents makes events about pods of what their agents and Envoys meet: a join that is refused, a probe that fails, a listener that Envoy refuses.
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

// Events makes the events. A nil *Events is valid and makes none.
type Events struct {
	// Pod returns a pod, nil if it is unknown.
	Pod func(watch.Key) *source.Pod
	// Record writes an event, later. It returns at once.
	Record func(events.Event)
}

// podOf returns the pod whose Dataplane has that name now, nil if it is unknown.
func (e *Events) podOf(dataplane string) (watch.Key, *source.Pod) {
	namespace, name, ok := mesh.ObjectOf(dataplane)
	if e == nil || !ok {
		return watch.Key{}, nil
	}
	key := watch.Key{Namespace: namespace, Name: name}
	return key, e.Pod(key)
}

// aboutContainer returns an event about a container of a pod, without what has happened.
func aboutContainer(key watch.Key, p *source.Pod, container string) events.Event {
	return events.Event{
		Kind: "Pod", APIVersion: "v1", Namespace: key.Namespace, Name: key.Name, UID: p.UID, FieldPath: p.FieldPath(container),
	}
}

// Refused makes an event of a join that was refused, about the pod that has tried: the one that its token names, or the one at the
// caller's address. No other caller can cause one.
func (e *Events) Refused(r join.Refusal) {
	if r.Waiting && !r.Lasting {
		return // each new pod may have to
	}
	key, p := e.podOf(r.Dataplane)
	if p == nil || r.Authenticated && string(p.UID) != r.Instance || !r.Authenticated && p.Address != r.Peer {
		return
	}
	event := aboutContainer(key, p, mesh.ContainerSidecar)
	event.Reason, event.Action, event.Note = podcause.JoinRefused, "Join"+r.Code, podcause.Refused(r.Reason) // an event of another code is not hidden in the series of the first
	if r.Waiting {
		event.Reason, event.Note = podcause.JoinWaiting, podcause.Waits(r.Reason)
	}
	e.Record(event)
}

// Absent says that the pod of a proxy has no place in its namespace's share of the memory, "" for any other.
func (e *Events) Absent(who identity.Subject) string {
	_, p := e.podOf(who.Dataplane)
	if p == nil || !p.Beyond || string(p.UID) != who.Instance {
		return ""
	}
	return "its pod " + p.Problem
}

// ProbeFailed makes an event of a probe that fails, with the reason that the kubelet would have given: its own event shows a status
// alone.
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

// ListenerRefused makes an event of a listener that the Envoy of a pod refuses. It is for one that it has not refused before.
func (e *Events) ListenerRefused(id mesh.ID, listener, reason string) {
	_, name := mesh.SplitID(id)
	key, p := e.podOf(name)
	if p == nil {
		return
	}
	event := aboutContainer(key, p, mesh.ContainerSidecar)
	event.Reason, event.Action, event.Note = podcause.ListenerRefused, "Listen"+listener, podcause.Listener(listener, reason) // as JoinRefused
	e.Record(event)
}
