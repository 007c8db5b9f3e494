package controlplane

import (
	"errors"

	"github.com/sonde-mesh/sonde/agents/session"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
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
	return p.restarts.Of(pod)
}

// Held implements session.Restarts.
func (p podRestarts) Held(mesh.ID) { p.restarts.Wake() }

// liveness returns what agents say, by pod.
func (c *cluster) liveness() map[watch.Key]agentv1.ReportedLiveness {
	return LivenessOf(c.cp.agents.PodLiveness())
}

// LivenessOf returns by pod what agents have said.
func LivenessOf(said map[mesh.ID]agentv1.ReportedLiveness) map[watch.Key]agentv1.ReportedLiveness {
	all := map[watch.Key]agentv1.ReportedLiveness{}
	for id, l := range said {
		_, name := mesh.SplitID(id)
		if pod, is := podOf(name); is {
			all[pod] = l
		}
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

// restartAnswers answers sondectl, and other replicas that do not lead.
func (c *cluster) restartAnswers() *restarts.Answers {
	return &restarts.Answers{
		Restarts: c.controller.Restarts, Replica: c.replica(), Others: c.cp.peers.Decisions, Agent: c.agentOf,
	}
}

func (c *cluster) agentOf(pod watch.Key) (*adminv1.AgentState, *adminv1.Agent) {
	p := c.controller.Cluster.PodNamed(pod)
	if p == nil {
		return nil, nil
	}
	id := mesh.MakeID(p.Mesh, pod.Name+"."+pod.Namespace)
	return c.cp.agents.States()[id], c.cp.agents.Agents()[id]
}
