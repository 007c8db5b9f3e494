package controlplane

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

// podOfDataplane returns the pod whose Dataplane has that name now, nil if there is none.
func (c *cluster) podOfDataplane(name string) (watch.Key, *source.Pod) {
	namespace, pod, ok := mesh.ObjectOf(name)
	if !ok {
		return watch.Key{}, nil
	}
	key := watch.Key{Namespace: namespace, Name: pod}
	return key, c.controller.Cluster.PodNamed(key)
}

// aboutContainer returns an event about a container of a pod, without what has happened.
func aboutContainer(key watch.Key, p *source.Pod, container string) events.Event {
	return events.Event{
		Kind: "Pod", APIVersion: "v1", Namespace: key.Namespace, Name: key.Name, UID: p.UID, FieldPath: p.FieldPath(container),
	}
}

// refused makes an event of a join that was refused, about the pod that has tried: the one that its token names, or the one at the
// caller's address. No other caller can cause one.
func (c *cluster) refused(r join.Refusal) {
	if r.Waiting && !r.Lasting {
		return // each new pod may have to
	}
	key, p := c.podOfDataplane(r.Dataplane)
	if p == nil || r.Authenticated && string(p.UID) != r.Instance || !r.Authenticated && p.Address != r.Peer {
		return
	}
	e := aboutContainer(key, p, mesh.ContainerSidecar)
	e.Reason, e.Action, e.Note = podcause.JoinRefused, "Join"+r.Code, podcause.Refused(r.Reason) // an event of another code is not hidden in the series of the first
	if r.Waiting {
		e.Reason, e.Note = podcause.JoinWaiting, podcause.Waits(r.Reason)
	}
	c.controller.Events.Record(e)
}

// absent says that the pod of a proxy has no place in its namespace's share of the memory, "" for any other.
func (c *cluster) absent(who identity.Subject) string {
	_, p := c.podOfDataplane(who.Dataplane)
	if p == nil || !p.Beyond || string(p.UID) != who.Instance {
		return ""
	}
	return "its pod " + p.Problem
}

// probeFailed makes an event of a probe that fails, with the reason that the kubelet would have given: its own event shows a status
// alone.
func (c *cluster) probeFailed(proxy identity.Subject, f *agentv1.ProbeFailure) {
	key, p := c.podOfDataplane(proxy.Dataplane)
	if p == nil || string(p.UID) != proxy.Instance {
		return
	}
	e := aboutContainer(key, p, f.GetContainer())
	e.Reason, e.Action = podcause.ProbeFailed, f.GetClass()
	e.Note = podcause.Failure{Probe: f.GetProbe(), Verdict: f.GetVerdict(), Reason: f.GetReason()}.String()
	c.controller.Events.Record(e)
}

// listenerRefused makes an event of a listener that the Envoy of a pod refuses. It is for one that it has not refused before.
func (c *cluster) listenerRefused(id mesh.ID, listener, reason string) {
	_, name := mesh.SplitID(id)
	key, p := c.podOfDataplane(name)
	if p == nil {
		return
	}
	e := aboutContainer(key, p, mesh.ContainerSidecar)
	e.Reason, e.Action, e.Note = podcause.ListenerRefused, "Listen"+listener, podcause.Listener(listener, reason) // as JoinRefused
	c.controller.Events.Record(e)
}
