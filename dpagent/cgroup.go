package dpagent

import (
	"runtime"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/cgroup"
)

// memory returns how many bytes the agent and Envoy may use. If it returns 0 (unknown), the control plane uses a
// default.
func (a *Agent) memory() uint64 {
	n, err := cgroup.Memory()
	if err != nil {
		a.logger.Warn("failed to find the memory limit, sizing envoy for the default limit of a sidecar", "err", err)
	}
	return n
}

// workers returns the number of Envoy's worker threads.
func (a *Agent) workers() int {
	if a.o.Concurrency != 0 {
		return a.o.Concurrency
	}
	limit, err := cgroup.CPUs()
	if err != nil {
		a.logger.Warn("failed to find the CPU limit, using the worker threads of an unlimited envoy", "err", err)
	}
	n := workersOf(limit, runtime.NumCPU())
	a.logger.Info("worker threads of envoy", "threads", n, "cpuLimit", limit)
	return n
}

// workersOf returns the number of worker threads for a CPU limit in processors (0 means unlimited) on a machine with
// this many processors. More threads would exhaust the CPU quota sooner, and then all threads wait for the next period.
func workersOf(limit, processors int) int {
	if limit == 0 {
		limit = mesh.DefaultConcurrency
	}
	return min(limit, processors)
}
