package controlplane

import (
	"errors"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
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

// restartAnswers answers sondectl, and other replicas that do not lead.
func (c *cluster) restartAnswers() *restarts.Answers {
	return &restarts.Answers{
		Restarts: c.controller.Restarts, Replica: c.replica(), Others: c.cp.peers.Decisions, Agent: c.agentOf,
	}
}

func (c *cluster) agentOf(pod watch.Key) (*adminv1.AgentState, *adminv1.Agent) {
	id := c.controller.Cluster.ProxyOf(pod)
	return c.cp.agents.States()[id], c.cp.agents.Agents()[id]
}
