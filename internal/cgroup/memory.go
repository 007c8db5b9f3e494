package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// memoryController has the limit files of both versions, in bytes.
var memoryController = controller{name: "memory", file1: "memory.limit_in_bytes", file2: "memory.max"}

// Memory returns how many bytes this process may use together with its cgroup. It is the lowest limit of the cgroup and
// its ancestors, in version 1 or 2, or else the memory of the machine.
func Memory() (uint64, error) { return memory("/") }

// memory is Memory for a file system below root.
func memory(root string) (uint64, error) {
	machine, err := machineMemory(root)
	if err != nil {
		return 0, err
	}
	files, err := memoryController.files(root)
	if err != nil {
		return 0, err
	}
	least := machine
	for _, f := range files {
		limit, err := bytesIn(f.path)
		if err != nil {
			return 0, fmt.Errorf("memory: %w", err)
		}
		least = min(least, limit)
	}
	return least, nil
}

// machineMemory returns the memory of the machine in bytes (proc_meminfo(5)).
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
		const unit = 1 << 10 // the file uses kB
		n, err := strconv.ParseUint(fields[1], 10, 64)
		if err != nil || n == 0 || n > unlimited/unit {
			return 0, fmt.Errorf("read the memory of the machine: %s has %q, want a number of kB", path, fields[1])
		}
		return n * unit, nil
	}
	return 0, fmt.Errorf("read the memory of the machine: %s has no MemTotal", path)
}

// bytesIn returns the limit in a file, unlimited if it does not exist.
func bytesIn(path string) (uint64, error) {
	value, err := read(path)
	if err != nil || value == "" || value == noLimit {
		return unlimited, err
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s has %q, want a number of bytes or %s", path, value, noLimit)
	}
	if n == 0 {
		return unlimited, nil // 0 would mean that nothing may run
	}
	return n, nil
}
