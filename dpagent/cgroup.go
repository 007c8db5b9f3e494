package dpagent

import (
	"runtime"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/cgroup"
)

// memory returns how many bytes the agent and Envoy may use. If that cannot be known the control plane has a default.
func (a *Agent) memory() uint64 {
	n, err := cgroup.Memory()
	if err != nil {
		a.logger.Warn("memory limit not known, envoy gets that of an injected sidecar", "err", err)
	}
	return n
}

// workers returns how many worker threads Envoy gets.
func (a *Agent) workers() int {
	if a.o.Concurrency != 0 {
		return a.o.Concurrency
	}
	limit, err := cgroup.CPUs()
	if err != nil {
		a.logger.Warn("CPU limit not known, envoy gets as many worker threads as without one", "err", err)
	}
	n := workersOf(limit, runtime.NumCPU())
	a.logger.Info("worker threads of envoy", "threads", n, "cpuLimit", limit)
	return n
}

// workersOf returns how many worker threads have use for a limit of so many processors, 0 for none, on that many: more of them would only use up
// the quota sooner, and then all wait for the next period.
func workersOf(limit, processors int) int {
	if limit == 0 {
		limit = mesh.DefaultConcurrency
	}
	return min(limit, processors)
}
