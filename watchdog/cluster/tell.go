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

// tell tells of a verdict that has changed.
func (c *Cluster) tell(ctx context.Context, before, now partition.Status) {
	if before.Verdict == now.Verdict && before.Cause == now.Cause || before.Verdict == "" && now.Verdict == partition.Seen {
		return
	}
	c.o.Logger.InfoContext(ctx, "verdict has changed", "verdict", string(now.Verdict), "cause", string(now.Cause), "before", string(before.Verdict),
		"nodes", now.Members, "silent", now.Silent, "unheard", now.Unheard)
	if before.Verdict == "" && now.Cause == partition.Unheard || before.Cause == partition.Unheard && now.Verdict == partition.Seen {
		return // a leader that begins
	}
	e := Event{Action: "Probe"}
	switch now.Verdict {
	case partition.Lost:
		e.Reason = reasonLost
		e.Note = fmt.Sprintf("%d of %d nodes do not renew their leases, although the API server answers: the path to them may be broken", now.Silent, now.Members)
	case partition.Seen:
		e.Reason, e.Normal = reasonSeen, true
		e.Note = fmt.Sprintf("nodes renew their leases, %d of %d do not", now.Silent, now.Members)
	default:
		e.Reason = reasonUnknown
		e.Note = "nothing is known of the nodes, and nothing is scaled: " + string(now.Cause)
	}
	c.o.Event(e)
}

// acted tells of what was done with a dependant.
func (c *Cluster) acted(a scale.Action) {
	log := c.o.Logger.With("kind", a.Ref.Kind, "dependant", a.Ref.Name, "action", string(a.Direction), "replicas", a.Replicas)
	what := a.Ref.Kind + " " + a.Ref.Name
	e := Event{Action: "Scale", FieldPath: "spec.dependants{" + a.Ref.Kind + "/" + a.Ref.Name + "}"}
	switch a.Result {
	case scale.Done:
		log.Info("dependant scaled")
		e.Reason, e.Note = "ScaledDown", fmt.Sprintf("%s scaled down from %d", what, a.Replicas)
		if a.Direction == scale.Up {
			e.Reason, e.Note, e.Normal = "ScaledUp", fmt.Sprintf("%s scaled up to %d", what, a.Replicas), true
		}
	case scale.Was:
		log.Info("dependant left as another client has scaled it")
		e.Reason, e.Note, e.Normal = "ReplicasKept", fmt.Sprintf("%s is left with %d replicas, which another client has set", what, a.Replicas), true
	case scale.Ignored:
		log.Info("dependant ignored, as its annotation says")
		e.Reason, e.Note, e.Normal = "ScalingIgnored", what+" is left to its operator: "+scale.AnnotationIgnore, true
	case scale.DryRun:
		log.Info("dependant would be scaled, this is a dry run")
		e.Reason, e.Note, e.Normal = "ScaleDryRun", fmt.Sprintf("%s would be scaled (%s)", what, a.Direction), true
	case scale.Failed:
		log.Warn("dependant not scaled, trying again", "err", a.Err)
		e.Reason, e.Note = "ScaleFailed", a.Err.Error()
	}
	c.o.Acted(a)
	c.o.Event(e)
}
