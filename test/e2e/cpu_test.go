//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// cpuGroup is the directory of a cgroup that limits the CPU time of its processes.
type cpuGroup string

// cpuGroup returns the CPU cgroup of a process's container.
func (p process) cpuGroup(t *testing.T) cpuGroup {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) { // 1:cpu,cpuacct:/path, or 0::/path
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for controller := range strings.SplitSeq(fields[1], ",") {
			if dir := filepath.Join("/sys/fs/cgroup", controller, fields[2]); controller == "cpu" || fields[0] == "0" && isUnified(dir) {
				return cpuGroup(dir)
			}
		}
	}
	t.Fatalf("process %d has no cgroup for the processor: %s", p.pid, text)
	return ""
}

func isUnified(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "cpu.max"))
	return err == nil
}

// pods returns the cgroup of all pods of the node.
func (g cpuGroup) pods(t *testing.T) cpuGroup {
	t.Helper()
	before, _, ok := strings.Cut(string(g), "/kubepods/")
	if !ok {
		t.Fatalf("group %s is no pod's", g)
	}
	return cpuGroup(before + "/kubepods")
}

// limit limits the cgroup until the test ends. It removes the limits of child cgroups, because version 1 of cgroups
// rejects a limit below those.
func (g cpuGroup) limit(t *testing.T, millicores int) {
	t.Helper()
	t.Cleanup(func() { g.unlimit(t) })
	// The kernel's minimum quota is 1 ms, so the period is the longest possible.
	if isUnified(string(g)) {
		g.write(t, "cpu.max", fmt.Sprintf("%d 1000000", millicores*1000))
		return
	}
	if err := filepath.WalkDir(string(g), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			cpuGroup(path).unlimit(t)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	g.write(t, "cpu.cfs_period_us", "1000000")
	g.write(t, "cpu.cfs_quota_us", strconv.Itoa(millicores*1000))
}

func (g cpuGroup) unlimit(t *testing.T) {
	t.Helper()
	if isUnified(string(g)) {
		g.write(t, "cpu.max", "max")
		return
	}
	g.write(t, "cpu.cfs_quota_us", "-1")
}

// write sets a value, unless the cgroup's container has ended.
func (g cpuGroup) write(t *testing.T, name, value string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(string(g), name), []byte(value), 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
