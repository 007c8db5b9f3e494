package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/tools/testbed/machine"
)

// cleanTimeout is how long the processes and cgroups of a cluster may take to go.
const cleanTimeout = time.Minute

// sysctlFile has the settings that the kubelets have changed, as they were before.
const sysctlFile = "machine.json"

// Files outside of our directories that a kubelet and CNI write, under names that they alone choose.
const (
	containerLogs = "/var/log/containers"  // links to the logs of containers
	cniResults    = "/var/lib/cni/results" // one file for each pod, which begins with the network's name
)

// Down ends the cluster and removes all of it. It needs nothing of what Up has written, but for the settings of the machine to restore,
// so it also does so if Up was killed, and does nothing if there is nothing.
func (c *Cluster) Down(ctx context.Context) error {
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return c.clean(ctx)
}

// clean removes everything that carries the cluster's name.
func (c *Cluster) clean(ctx context.Context) error {
	group, err := machine.NewCgroup(c.id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	// Those that start others first, then what runs in containers, which has none of our marks.
	if err := machine.KillAll(ctx, c.marked); err != nil {
		return err
	}
	if err := machine.KillAll(ctx, group.PIDs); err != nil {
		return err
	}
	for _, directory := range []string{c.run(), c.state} {
		if err := machine.Unmount(directory); err != nil {
			return err
		}
	}
	if err := c.removeNamespaces(ctx); err != nil {
		return err
	}
	if err := group.Remove(ctx); err != nil {
		return err
	}
	if err := c.removeStrays(); err != nil {
		return err
	}
	if err := machine.RestoreSysctls(c.path(sysctlFile)); err != nil {
		return fmt.Errorf("restore the settings of the machine: %w", err)
	}
	return errors.Join(os.RemoveAll(c.run()), os.RemoveAll(c.state))
}

// marked returns the processes that were started for this cluster, outside of containers.
func (c *Cluster) marked() ([]int, error) {
	found, err := machine.Marked(markState + c.state)
	var pids []int
	for _, p := range found {
		pids = append(pids, p.PID)
	}
	return pids, err
}

// removeNamespaces removes the network namespaces of the nodes. Those of pods were mounts in our directory.
func (c *Cluster) removeNamespaces(ctx context.Context) error {
	paths, err := filepath.Glob(filepath.Join(machine.NetnsDir, c.id+"-*"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		if _, err := machine.Run(ctx, "", "ip", "netns", "delete", filepath.Base(path)); err != nil {
			return err
		}
	}
	return nil
}

// removeStrays removes what a kubelet and CNI have written outside of our directories.
func (c *Cluster) removeStrays() error {
	results, err := filepath.Glob(filepath.Join(cniResults, c.id+"-*"))
	if err != nil {
		return err
	}
	logs, err := filepath.Glob(filepath.Join(containerLogs, "*.log"))
	if err != nil {
		return err
	}
	logs = slices.DeleteFunc(logs, func(path string) bool {
		target, err := os.Readlink(path)
		return err != nil || !strings.HasPrefix(target, c.state+"/")
	})
	var faults []error
	for _, path := range slices.Concat(results, logs) {
		faults = append(faults, os.Remove(path))
	}
	return errors.Join(faults...)
}
