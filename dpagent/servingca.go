package dpagent

import (
	"bytes"
	"errors"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/session"
	"github.com/sonde-mesh/sonde/dpagent/workdir"
)

// restoreSecrets writes all files that a starting Envoy reads.
func (a *Agent) restoreSecrets() error {
	return errors.Join(a.identity.Restore(), a.servingCA.Restore())
}

// sessionServingCA returns the receiver of the control plane's CAs for the session. It returns nil if Envoy does not
// read them from the agent's file, because its bootstrap is from an earlier control plane, or from an earlier agent
// whose Envoy still runs.
func (a *Agent) sessionServingCA() session.ServingCA {
	if err := a.servingCA.Restore(); err != nil {
		a.logger.Error("failed to write the control plane's CAs for envoy", "err", err)
	}
	bootstrap, err := a.dir.Read(workdir.Bootstrap)
	if err == nil && bytes.Contains(bootstrap, []byte(mesh.FileServingCA)) {
		return a.servingCA
	}
	a.logger.Info("envoy's bootstrap contains the control plane's CA, restart this proxy before rotating that CA",
		"err", err)
	return nil
}
