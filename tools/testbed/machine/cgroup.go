package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

const cgroupRoot = "/sys/fs/cgroup"

// Cgroup is the cgroup with the same path in each hierarchy: one hierarchy in version 2, one per controller in version
// 1.
type Cgroup struct {
	path string
	// hierarchies are the mount points. unified means that there is only the hierarchy of version 2.
	hierarchies []string
	unified     bool
}

// NewCgroup returns the cgroup with a path below the root, such as "a/b". It may not exist.
func NewCgroup(path string) (*Cgroup, error) {
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		return &Cgroup{path: path, hierarchies: []string{cgroupRoot}, unified: true}, nil
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil, fmt.Errorf("find the cgroups: %w", err)
	}
	c := &Cgroup{path: path}
	for _, e := range entries {
		directory, err := filepath.EvalSymlinks(filepath.Join(cgroupRoot, e.Name())) // cpu may be a link to cpu,cpuacct
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(filepath.Join(directory, "cgroup.procs")); err == nil && !slices.Contains(c.hierarchies, directory) {
			c.hierarchies = append(c.hierarchies, directory)
		}
	}
	return c, nil
}

// Controllers returns the names of the controllers that this machine has.
func Controllers() ([]string, error) {
	c, err := NewCgroup("")
	if err != nil {
		return nil, err
	}
	if c.unified {
		text, err := os.ReadFile(filepath.Join(cgroupRoot, "cgroup.controllers"))
		return strings.Fields(string(text)), err
	}
	var names []string
	for _, directory := range c.hierarchies {
		names = append(names, strings.Split(filepath.Base(directory), ",")...)
	}
	return names, nil
}

// Create creates the cgroup in each hierarchy, with all controllers.
func (c *Cgroup) Create() error {
	for _, root := range c.hierarchies {
		directory := root
		for name := range strings.SplitSeq(c.path, "/") {
			if c.unified {
				enable(directory)
			}
			parent := directory
			directory = filepath.Join(directory, name)
			if err := os.Mkdir(directory, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("make cgroup: %w", err)
			}
			if !c.unified {
				if err := inheritCpuset(parent, directory); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// enable enables all controllers of a version 2 cgroup for its children. It skips controllers that cannot be enabled,
// such as cpu with real-time processes: the kubelet names missing ones.
func enable(directory string) {
	controllers, _ := os.ReadFile(filepath.Join(directory, "cgroup.controllers"))
	for c := range strings.FieldsSeq(string(controllers)) {
		_ = os.WriteFile(filepath.Join(directory, "cgroup.subtree_control"), []byte("+"+c), 0)
	}
}

// inheritCpuset gives a version 1 cgroup the processors of its parent. A new cgroup has none, and cannot contain
// processes.
func inheritCpuset(parent, directory string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		text, err := os.ReadFile(filepath.Join(parent, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the file of another controller
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(directory, name), text, 0)
		}
		if err != nil {
			return fmt.Errorf("set %s of a cgroup: %w", name, err)
		}
	}
	return nil
}

// PIDs returns the processes in the cgroup and in all below it.
func (c *Cgroup) PIDs() ([]int, error) {
	seen := map[int]bool{}
	for _, directory := range c.directories() {
		text, err := os.ReadFile(filepath.Join(directory, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.EOPNOTSUPP) {
			continue // removed, or a threaded cgroup, whose processes the parent lists
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.FieldsSeq(string(text)) {
			pid, err := strconv.Atoi(line)
			if err != nil {
				return nil, fmt.Errorf("read the processes of %s: %w", directory, err)
			}
			seen[pid] = true
		}
	}
	var pids []int
	for pid := range seen {
		pids = append(pids, pid)
	}
	return pids, nil
}

// Remove removes the cgroup and all below it, which must have no processes. The kernel may keep a cgroup for a short
// time after its last process, so Remove retries until ctx ends.
func (c *Cgroup) Remove(ctx context.Context) error {
	for {
		var last error
		for _, directory := range slices.Backward(c.directories()) {
			if err := os.Remove(directory); err != nil && !errors.Is(err, fs.ErrNotExist) {
				last = err
			}
		}
		if last == nil {
			return nil
		}
		if err := Pause(ctx); err != nil {
			return fmt.Errorf("remove a cgroup: %w: %w", err, last)
		}
	}
}

// directories returns the directories of the cgroup and of all below it, each after its parent.
func (c *Cgroup) directories() []string {
	var all []string
	for _, root := range c.hierarchies {
		_ = filepath.WalkDir(filepath.Join(root, c.path), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, path)
			}
			return nil // skip a removed cgroup
		})
	}
	return all
}
