package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/tools/testbed/machine"
)

// cleanTimeout is how long the processes and cgroups of a cluster may take to go.
const cleanTimeout = time.Minute

// sysctlFile has the settings that the kubelets have changed, as they were before.
const sysctlFile = "machine.json"

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
	if err := machine.RestoreSysctls(c.path(sysctlFile)); err != nil {
		return fmt.Errorf("restore the settings of the machine: %w", err)
	}
	if err := errors.Join(os.RemoveAll(c.run()), os.RemoveAll(c.state)); err != nil {
		return err
	}
	return removeMountPoints()
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

// removeMountPoints removes the directories that Up has made for others to be mounted on. One that is not empty belongs to another program.
func removeMountPoints() error {
	// The kernel would remove a directory under the mounts of another cluster, and its mounts with it.
	if others, err := filepath.Glob("/run/" + idPrefix + "*"); err != nil || len(others) > 0 {
		return err
	}
	var faults []error
	for _, d := range append(slices.Clone(sharedDirectories), filepath.Dir(cniDirectory)) {
		if err := os.Remove(d); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, syscall.EBUSY) {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}
