package dpagent

import (
	"bytes"
	"errors"
	"io/fs"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/dpagent/guard/worker"
)

// Files that store the control plane's probes of a written Dataplane and its state of guarded liveness probes, for an
// agent that resumes after this one.
const (
	fileProbes        = "probes.pb"
	fileServiceProbes = "service-probes.pb"
	fileRestarts      = "restarts.pb"
)

// storeTold stores a message of the control plane if it has changed. A missing file means an empty message.
func (a *Agent) storeTold(file string, m proto.Message) {
	if !a.keepsEnvoy() {
		return
	}
	a.toldMu.Lock()
	defer a.toldMu.Unlock()
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err == nil && bytes.Equal(data, a.told[file]) {
		return
	}
	if err == nil {
		err = a.dir.Write(file, data)
	}
	if err != nil {
		a.logger.Warn("failed to store what the control plane sent, an agent that restarts uses the previous version until it connects",
			"file", file, "err", err)
		return
	}
	a.told[file] = data
}

// resumeTold loads the messages that a dead agent of the same guard stored. It does so even if Envoy has died too,
// since probes already arrive.
func (a *Agent) resumeTold() {
	if !a.keepsEnvoy() {
		return
	}
	if starts, _ := worker.Guarded(); starts <= 1 {
		if err := a.dir.Remove(fileProbes, fileServiceProbes, fileRestarts); err != nil { // from an earlier guard
			a.logger.Warn("failed to remove the probes of the previous agent", "err", err)
		}
		return
	}
	var probes agentv1.Probes
	var serviceProbes agentv1.ServiceProbes
	if a.readTold(fileProbes, &probes) {
		a.setProbes(&probes)
	}
	var restarts agentv1.Restarts
	if a.probes != nil && a.readTold(fileRestarts, &restarts) {
		a.setHold(restarts.GetHold())
		if a.liveness != nil {
			a.liveness.Told(&restarts)
		}
	}
	if a.readTold(fileServiceProbes, &serviceProbes) {
		a.setServiceProbes(&serviceProbes)
	}
}

// readTold returns false if the file holds no usable message.
func (a *Agent) readTold(file string, to proto.Message) bool {
	data, err := a.dir.Read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err == nil {
		err = proto.Unmarshal(data, to)
	}
	if err != nil {
		a.logger.Warn("probes of the previous agent unusable, waiting for the control plane", "file", file, "err", err)
		return false
	}
	a.told[file] = data
	return true
}
