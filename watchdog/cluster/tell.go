package cluster

import (
	"context"
	"fmt"

	"github.com/sonde-mesh/sonde/partition"
	"github.com/sonde-mesh/sonde/watchdog/scale"
)

// Reasons of events.
const (
	reasonLost    = "NodesLost"
	reasonSeen    = "NodesSeen"
	reasonUnknown = "NodesUnknown"
)

// tell logs and reports a changed verdict.
func (c *Cluster) tell(ctx context.Context, before, now partition.Status) {
	if before.Verdict == now.Verdict && before.Cause == now.Cause ||
		before.Verdict == "" && now.Verdict == partition.Seen {
		return
	}
	c.o.Logger.InfoContext(ctx, "verdict changed", "verdict", string(now.Verdict), "cause", string(now.Cause),
		"before", string(before.Verdict),
		"nodes", now.Members, "silent", now.Silent, "unheard", now.Unheard)
	if before.Verdict == "" && now.Cause == partition.Unheard ||
		before.Cause == partition.Unheard && now.Verdict == partition.Seen {
		return // the first verdict of a leader
	}
	e := Event{Action: "Probe"}
	switch now.Verdict {
	case partition.Lost:
		e.Reason = reasonLost
		e.Note = fmt.Sprintf("%d of %d nodes do not renew their leases although the API server answers: the path to them may be broken", now.Silent, now.Members)
	case partition.Seen:
		e.Reason, e.Normal = reasonSeen, true
		e.Note = fmt.Sprintf("nodes renew their leases, %d of %d do not", now.Silent, now.Members)
	default:
		e.Reason = reasonUnknown
		e.Note = "state of the nodes unknown, nothing is scaled: " + string(now.Cause)
	}
	c.o.Event(e)
}

// acted logs and reports an action on a dependant.
func (c *Cluster) acted(a scale.Action) {
	log := c.o.Logger.With("kind", a.Ref.Kind, "dependant", a.Ref.Name, "action", string(a.Direction),
		"replicas", a.Replicas)
	what := a.Ref.Kind + " " + a.Ref.Name
	e := Event{Action: "Scale", FieldPath: "spec.dependants{" + a.Ref.Kind + "/" + a.Ref.Name + "}"}
	switch a.Result {
	case scale.Done:
		log.Info("scaled dependant")
		e.Reason, e.Note = "ScaledDown", fmt.Sprintf("%s scaled down from %d", what, a.Replicas)
		if a.Direction == scale.Up {
			e.Reason, e.Note, e.Normal = "ScaledUp", fmt.Sprintf("%s scaled up to %d", what, a.Replicas), true
		}
	case scale.Was:
		log.Info("another client has scaled the dependant, leaving it")
		e.Reason, e.Note, e.Normal = "ReplicasKept", fmt.Sprintf("%s keeps its %d replicas, set by another client",
			what, a.Replicas), true
	case scale.Ignored:
		log.Info("ignoring dependant because of its annotation")
		e.Reason, e.Note, e.Normal = "ScalingIgnored", what+" is ignored: "+scale.AnnotationIgnore, true
	case scale.DryRun:
		log.Info("dry run, dependant not scaled")
		e.Reason, e.Note, e.Normal = "ScaleDryRun", fmt.Sprintf("%s would be scaled (%s)", what, a.Direction), true
	case scale.Failed:
		log.Warn("failed to scale dependant, retrying", "err", a.Err)
		e.Reason, e.Note = "ScaleFailed", a.Err.Error()
	}
	c.o.Acted(a)
	c.o.Event(e)
}
