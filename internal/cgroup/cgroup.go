// Package cgroup reads how much memory and how many processors a program may use.
package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	// unlimited is more bytes than any machine has. Cgroups version 1 uses a larger number for "no limit".
	unlimited = 1 << 60
	// noLimit means "no limit" in version 2.
	noLimit = "max"
)

// controller is a cgroup controller, which limits the use of one resource.
type controller struct {
	name string
	// file1 and file2 are the files with the limit, in cgroups version 1 and 2.
	file1, file2 string
}

// file has the limit of a cgroup. It may not exist, since the root of a hierarchy has no limit.
type file struct {
	path string
	v2   bool
}

// read returns the content of a file, "" if it does not exist.
func read(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return "", fmt.Errorf("read limit: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// files returns the files of this process's cgroup and of its visible ancestors.
func (c controller) files(root string) ([]file, error) {
	own, err := c.ownPaths(root)
	if err != nil {
		return nil, err
	}
	mounts, err := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("find the mounts of cgroups: %w", err)
	}
	var files []file
	for line := range strings.Lines(string(mounts)) {
		m, ok := c.parseMount(line)
		if !ok {
			continue
		}
		path, ok := own[m.v2]
		if !ok {
			continue
		}
		name := c.file1
		if m.v2 {
			name = c.file2
		}
		for _, dir := range m.directories(root, path) {
			files = append(files, file{filepath.Join(dir, name), m.v2})
		}
	}
	return files, nil
}

// ownPaths returns the path of this process's cgroup in each hierarchy that may have the controller: the one of version
// 2, and the controller's own of version 1 (cgroups(7), /proc/pid/cgroup).
func (c controller) ownPaths(root string) (map[bool]string, error) {
	text, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return nil, fmt.Errorf("find the cgroup of this process: %w", err)
	}
	paths := map[bool]string{}
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		switch {
		case len(parts) < 3:
		case parts[0] == "0" && parts[1] == "":
			paths[true] = parts[2]
		case has(parts[1], c.name):
			paths[false] = parts[2]
		}
	}
	return paths, nil
}

// mount is a mounted hierarchy, or the part of one below root.
type mount struct {
	root, at string
	v2       bool
}

// parseMount parses a line of proc_pid_mountinfo(5). It returns false if the mount cannot have the controller.
func (c controller) parseMount(line string) (mount, bool) {
	before, after, _ := strings.Cut(line, " - ")
	fields, super := strings.Fields(before), strings.Fields(after)
	if len(fields) < 5 || len(super) < 3 {
		return mount{}, false
	}
	m := mount{root: fields[3], at: fields[4], v2: super[0] == "cgroup2"}
	return m, m.v2 || super[0] == "cgroup" && has(super[2], c.name)
}

// directories returns the directories from the cgroup at path up to the mount. In a container without a cgroup
// namespace the path is the host's; if it is not below the mount's root, the mount is the container's own cgroup.
func (m mount) directories(root, path string) []string {
	below, ok := strings.CutPrefix(path, strings.TrimSuffix(m.root, "/"))
	if !ok || below != "" && below[0] != '/' {
		below = ""
	}
	top := filepath.Join(root, m.at)
	dirs := []string{top}
	for d := filepath.Join(top, below); len(d) > len(top) && strings.HasPrefix(d, top); d = filepath.Dir(d) {
		dirs = append(dirs, d)
	}
	return dirs
}

// has reports whether a comma-separated list has an element.
func has(list, element string) bool { return strings.Contains(","+list+",", ","+element+",") }
