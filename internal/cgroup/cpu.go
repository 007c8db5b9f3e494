package cgroup

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// cpuController has the quota files of both versions. The file of version 2 includes the period.
var cpuController = controller{name: "cpu", file1: "cpu.cfs_quota_us", file2: "cpu.max"}

// filePeriod1 has the period of version 1, in the directory of the quota.
const filePeriod1 = "cpu.cfs_period_us"

// CPUs returns how many processors this process may use together with its cgroup, rounded up. It is the lowest quota of
// the cgroup and its ancestors, in version 1 or 2, or 0 without a quota.
func CPUs() (int, error) { return cpus("/") }

// cpus is CPUs for a file system below root.
func cpus(root string) (int, error) {
	files, err := cpuController.files(root)
	if err != nil {
		return 0, err
	}
	least := 0
	for _, f := range files {
		n, err := quotaIn(f)
		if err != nil {
			return 0, fmt.Errorf("CPU: %w", err)
		}
		if n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	return least, nil
}

// quotaIn returns the quota of a cgroup in processors, rounded up, or 0 without a quota (kernel: admin-guide/cgroup-v2,
// cpu.max; scheduler/sched-bwc).
func quotaIn(f file) (int, error) {
	text, err := read(f.path)
	if err != nil || text == "" {
		return 0, err
	}
	quota, period, both := strings.Cut(text, " ")
	if !f.v2 {
		if period, err = read(filepath.Join(filepath.Dir(f.path), filePeriod1)); err != nil {
			return 0, err
		}
	}
	if quota == noLimit || quota == "-1" && !both {
		return 0, nil
	}
	q, err := strconv.ParseUint(quota, 10, 62)
	p, periodErr := strconv.ParseUint(period, 10, 62)
	if err != nil || periodErr != nil || q == 0 || p == 0 {
		return 0, fmt.Errorf("%s has %q of %q, want microseconds of a period, or %s", f.path, quota, period, noLimit)
	}
	return int((q + p - 1) / p), nil
}
