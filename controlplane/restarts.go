package controlplane

import (
	"errors"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sonde-mesh/sonde/agents/observed"
	"github.com/sonde-mesh/sonde/agents/session"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/restarts"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// validateGuardedLiveness returns the errors of s as those of fields of Options.
func validateGuardedLiveness(s restartbudget.Settings) error {
	joined, _ := s.Validate().(interface{ Unwrap() []error })
	if joined == nil {
		return nil
	}
	var errs []error
	for _, err := range joined.Unwrap() {
		if wrong, ok := errors.AsType[*restartbudget.SettingError](err); ok {
			err = &mesh.FieldError{Field: "Kubernetes.GuardedLiveness." + wrong.Setting, Value: wrong.Value, Allowed: wrong.Allowed}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// SessionRestarts returns what agents of pods are told of restarts.
func SessionRestarts(r *restarts.Restarts) session.Restarts { return podRestarts{r} }

// podRestarts tells agents of pods which restarts are granted.
type podRestarts struct{ restarts *restarts.Restarts }

// Of implements session.Restarts.
func (p podRestarts) Of(id mesh.ID) *agentv1.Restarts {
	_, name := mesh.SplitID(id)
	pod, is := podOf(name)
	if !is {
		return nil
	}
	orders, known := p.restarts.Of(pod)
	if !known {
		return nil
	}
	m := &agentv1.Restarts{Mode: modes[orders.Mode], WhenAway: whenAway(orders.Away)}
	for _, g := range orders.Grants {
		m.Grants = append(m.Grants, &agentv1.RestartGrant{Name: g.Name, Container: g.Container, Epoch: g.Epoch})
	}
	return m
}

var modes = map[restarts.Mode]agentv1.Restarts_Mode{
	restarts.Hold: agentv1.Restarts_HOLD, restarts.Native: agentv1.Restarts_NATIVE, restarts.Suspended: agentv1.Restarts_SUSPENDED,
}

var awayPolicies = map[restarts.AwayPolicy]agentv1.WhenAway_Policy{
	restarts.AwayHold: agentv1.WhenAway_HOLD, restarts.AwaySlots: agentv1.WhenAway_SLOTS, restarts.AwayNative: agentv1.WhenAway_NATIVE,
}

func whenAway(a restarts.Away) *agentv1.WhenAway {
	return &agentv1.WhenAway{
		Policy: awayPolicies[a.Policy], After: durationpb.New(a.After), Turn: uint32(a.Turn), Turns: uint32(a.Turns), TurnTime: durationpb.New(a.TurnTime),
	}
}

// Held implements session.Restarts.
func (p podRestarts) Held(mesh.ID) { p.restarts.Wake() }

// liveness returns what agents say, by pod.
func (c *cluster) liveness() map[watch.Key]restarts.Liveness {
	return LivenessOf(c.cp.agents.PodLiveness())
}

// LivenessOf returns by pod what agents have said.
func LivenessOf(said map[mesh.ID]observed.PodLiveness) map[watch.Key]restarts.Liveness {
	all := map[watch.Key]restarts.Liveness{}
	for id, said := range said {
		_, name := mesh.SplitID(id)
		pod, is := podOf(name)
		if !is {
			continue
		}
		l := restarts.Liveness{Passing: said.Passing, Unused: said.Unused}
		for _, f := range said.Failing {
			l.Failing = append(l.Failing, restarts.Failing{Container: f.Container, Since: f.Since, Reason: f.Reason, Grant: f.Grant})
			if f.Grant == "" { // with one it does not ask for another
				l.Asking = append(l.Asking, restarts.Asking{Container: f.Container, Since: f.Since})
			}
		}
		all[pod] = l
	}
	return all
}

// tellRestarts has the agent of a pod be told what is granted, if its session is here.
func (c *cluster) tellRestarts(pod watch.Key) {
	if p := c.controller.Cluster.PodNamed(pod); p != nil {
		c.cp.agents.WakeRestarts(mesh.MakeID(p.Mesh, pod.Name+"."+pod.Namespace))
	}
}

// withoutGrants returns the pods whose agents are too old for grants.
func (c *cluster) withoutGrants() map[watch.Key]bool {
	all := map[watch.Key]bool{}
	for _, id := range c.cp.agents.Lacking(agentv1.FeatureRestartGrants) {
		_, name := mesh.SplitID(id)
		if pod, is := podOf(name); is {
			all[pod] = true
		}
	}
	return all
}
