// Package cgroup finds out how much memory a program may use.
package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// unlimited is more than any machine has. Version 1 of cgroups says "no limit" by a number above it.
const unlimited = 1 << 60

// Memory returns how many bytes this process may use, together with all others of its cgroup: the lowest limit of its cgroup and those
// above it, in version 1 or 2, or else the memory of the machine.
func Memory() (uint64, error) { return memory("/") }

// memory is Memory in a file system below root.
func memory(root string) (uint64, error) {
	machine, err := machineMemory(root)
	if err != nil {
		return 0, err
	}
	dirs, err := directories(root)
	if err != nil {
		return 0, err
	}
	least := machine
	for _, d := range dirs {
		limit, err := d.limit()
		if err != nil {
			return 0, err
		}
		least = min(least, limit)
	}
	return least, nil
}

// machineMemory returns how many bytes the machine has (proc_meminfo(5)).
func machineMemory(root string) (uint64, error) {
	path := filepath.Join(root, "proc/meminfo")
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("read the memory of the machine: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "MemTotal:" {
			continue
		}
		const unit = 1 << 10 // the file says kB
		n, err := strconv.ParseUint(fields[1], 10, 64)
		if err != nil || n == 0 || n > unlimited/unit {
			return 0, fmt.Errorf("read the memory of the machine: %s says %q, want a number of kB", path, fields[1])
		}
		return n * unit, nil
	}
	return 0, fmt.Errorf("read the memory of the machine: %s has no MemTotal", path)
}

// directory is that of a cgroup, with the file that has its limit.
type directory struct {
	path, file string
}

// limit returns unlimited where there is none: the root of a hierarchy has no such file.
func (d directory) limit() (uint64, error) {
	path := filepath.Join(d.path, d.file)
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return unlimited, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read memory limit: %w", err)
	}
	value := strings.TrimSpace(string(text))
	if value == "max" {
		return unlimited, nil
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read memory limit: %s says %q, want a number of bytes or max", path, value)
	}
	if n == 0 {
		return unlimited, nil // nothing could run
	}
	return n, nil
}

// directories returns those of the cgroup of this process that may have a limit, and of those above it that can be seen.
func directories(root string) ([]directory, error) {
	own, err := ownPaths(root)
	if err != nil {
		return nil, err
	}
	mounts, err := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("find the mounts of cgroups: %w", err)
	}
	var dirs []directory
	for line := range strings.Lines(string(mounts)) {
		m, ok := parseMount(line)
		if !ok {
			continue
		}
		path, ok := own[m.file]
		if !ok {
			continue
		}
		dirs = append(dirs, m.directories(root, path)...)
	}
	return dirs, nil
}

// Files that have the limit, in the versions of cgroups.
const (
	file1 = "memory.limit_in_bytes"
	file2 = "memory.max"
)

// ownPaths returns the path of the cgroup of this process in each hierarchy that can limit memory, by the file that has the limit
// (cgroups(7), /proc/pid/cgroup).
func ownPaths(root string) (map[string]string, error) {
	text, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return nil, fmt.Errorf("find the cgroup of this process: %w", err)
	}
	paths := map[string]string{}
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		switch {
		case len(parts) < 3:
		case parts[0] == "0" && parts[1] == "":
			paths[file2] = parts[2]
		case has(parts[1], "memory"):
			paths[file1] = parts[2]
		}
	}
	return paths, nil
}

// mount is a mounted hierarchy, or the part of one below root.
type mount struct {
	root, at, file string
}

// parseMount parses a line of proc_pid_mountinfo(5). It returns false for what cannot limit memory.
func parseMount(line string) (mount, bool) {
	before, after, _ := strings.Cut(line, " - ")
	fields, super := strings.Fields(before), strings.Fields(after)
	if len(fields) < 5 || len(super) < 3 {
		return mount{}, false
	}
	m := mount{root: fields[3], at: fields[4]}
	switch {
	case super[0] == "cgroup2":
		m.file = file2
	case super[0] == "cgroup" && has(super[2], "memory"):
		m.file = file1
	default:
		return mount{}, false
	}
	return m, true
}

// directories returns those from the cgroup with that path up to the mount. In a container without a namespace of cgroups the path is that
// on the host, and where it is not below the mount's root, the mount is the container's own cgroup.
func (m mount) directories(root, path string) []directory {
	below, ok := strings.CutPrefix(path, strings.TrimSuffix(m.root, "/"))
	if !ok || below != "" && below[0] != '/' {
		below = ""
	}
	top := filepath.Join(root, m.at)
	dirs := []directory{{top, m.file}}
	for d := filepath.Join(top, below); len(d) > len(top) && strings.HasPrefix(d, top); d = filepath.Dir(d) {
		dirs = append(dirs, directory{d, m.file})
	}
	return dirs
}

// has reports whether a list that is separated by commas has an element.
func has(list, element string) bool { return strings.Contains(","+list+",", ","+element+",") }
