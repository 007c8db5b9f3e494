package dpagent

import (
	"bytes"
	"errors"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/session"
	"github.com/sonde-mesh/sonde/dpagent/workdir"
)

// restoreSecrets writes all that Envoy reads, for one that starts.
func (a *Agent) restoreSecrets() error {
	return errors.Join(a.identity.Restore(), a.servingCA.Restore())
}

// sessionServingCA returns what the session takes the control plane's CAs for, nil if Envoy does not read them from the agent's file: then its
// bootstrap is of an earlier control plane, or of an earlier agent whose Envoy runs on.
func (a *Agent) sessionServingCA() session.ServingCA {
	if err := a.servingCA.Restore(); err != nil {
		a.logger.Error("CAs of the control plane not written for Envoy", "err", err)
	}
	bootstrap, err := a.dir.Read(workdir.Bootstrap)
	if err == nil && bytes.Contains(bootstrap, []byte(mesh.FileServingCA)) {
		return a.servingCA
	}
	a.logger.Info("Envoy has the control plane's CA in its bootstrap: this proxy has to be restarted before that CA is rotated", "err", err)
	return nil
}
