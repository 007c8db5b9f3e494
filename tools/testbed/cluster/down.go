package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/tools/testbed/machine"
)

// cleanTimeout bounds the end of a cluster's processes and cgroups.
const cleanTimeout = time.Minute

// sysctlFile has the original values of settings that the kubelets change.
const sysctlFile = "machine.json"

// Down stops the cluster and removes all of it. It needs only the saved settings of the machine, so it also works if Up
// was killed, and does nothing without a cluster.
func (c *Cluster) Down(ctx context.Context) error {
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return c.clean(ctx)
}

// clean removes everything with the cluster's name.
func (c *Cluster) clean(ctx context.Context) error {
	group, err := machine.NewCgroup(c.id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	// First kill processes that start others, then processes in containers, which have no marks.
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

// marked returns this cluster's processes outside of containers.
func (c *Cluster) marked() ([]int, error) {
	found, err := machine.Marked(markState + c.state)
	var pids []int
	for _, p := range found {
		pids = append(pids, p.PID)
	}
	return pids, err
}

// removeNamespaces removes the nodes' network namespaces. Pods' namespaces were mounts in the cluster's directory.
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

// removeMountPoints removes the directories that Up created as mount points. A directory that is not empty belongs to
// another program.
func removeMountPoints() error {
	// The kernel would also remove a mount point of another cluster, with its mounts.
	others, err := filepath.Glob("/run/" + idPrefix + strings.Repeat("[0-9a-f]", 6))
	if err != nil || len(others) > 0 {
		return err
	}
	var faults []error
	for _, d := range append(slices.Clone(sharedDirectories), filepath.Dir(cniDirectory)) {
		if err := os.Remove(d); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) &&
			!errors.Is(err, syscall.EBUSY) {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}
