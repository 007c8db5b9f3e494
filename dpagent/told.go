package dpagent

import (
	"bytes"
	"errors"
	"io/fs"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/dpagent/guard/worker"
)

// Files with what the control plane has said of the probes of a written Dataplane, and of guarded liveness probes, for an agent that goes on where this one has died.
const (
	fileProbes        = "probes.pb"
	fileServiceProbes = "service-probes.pb"
	fileRestarts      = "restarts.pb"
)

// storeTold stores what the control plane has said, unless it is what it said before. No file is as one that names nothing.
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
		a.logger.Warn("probes not stored, the next agent has the previous ones until it has a session", "file", file, "err", err)
		return
	}
	a.told[file] = data
}

// resumeTold takes what was said to an agent of this process' guard that has died, also if its Envoy has died with it: probes are asked
// meanwhile.
func (a *Agent) resumeTold() {
	if !a.keepsEnvoy() {
		return
	}
	if starts, _ := worker.Guarded(); starts <= 1 {
		if err := a.dir.Remove(fileProbes, fileServiceProbes, fileRestarts); err != nil { // they are of a process long gone
			a.logger.Warn("probes of the previous agent not removed", "err", err)
		}
		return
	}
	var probes agentv1.Probes
	var serviceProbes agentv1.ServiceProbes
	if a.readTold(fileProbes, &probes) {
		a.setProbes(&probes)
	}
	var restarts agentv1.Restarts
	if a.liveness != nil && a.readTold(fileRestarts, &restarts) {
		a.liveness.Told(&restarts)
	}
	if a.readTold(fileServiceProbes, &serviceProbes) {
		a.setServiceProbes(&serviceProbes)
	}
}

// readTold returns false if nothing was said that can be used.
func (a *Agent) readTold(file string, to proto.Message) bool {
	data, err := a.dir.Read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err == nil {
		err = proto.Unmarshal(data, to)
	}
	if err != nil {
		a.logger.Warn("probes of the previous agent not used, waiting for the control plane", "file", file, "err", err)
		return false
	}
	a.told[file] = data
	return true
}
