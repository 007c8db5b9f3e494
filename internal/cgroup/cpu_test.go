package cgroup

import (
	"strings"
	"testing"
)

func TestCPUs(t *testing.T) {
	const (
		own2  = "0::/\n"
		file2 = "sys/fs/cgroup/cpu.max"
		own1  = "4:memory:/m\n3:cpu,cpuacct:/a\n0::/\n"
		dir1  = "sys/fs/cgroup/cpu/a/"
	)
	container := func(text string) map[string]string {
		return map[string]string{"proc/self/cgroup": own2, "proc/self/mountinfo": mount2, file2: text}
	}
	tests := map[string]struct {
		files map[string]string
		want  int
	}{
		"no cgroups":                    {files: map[string]string{"proc/self/cgroup": "", "proc/self/mountinfo": ""}},
		"version 2, no quota":           {files: container("max 100000\n")},
		"version 2, the root":           {files: map[string]string{"proc/self/cgroup": own2, "proc/self/mountinfo": mount2}},
		"version 2, a part of one":      {files: container("5000 100000\n"), want: 1},
		"version 2, one":                {files: container("100000 100000\n"), want: 1},
		"version 2, a little more":      {files: container("100001 100000\n"), want: 2},
		"version 2, several":            {files: container("400000 100000\n"), want: 4},
		"version 2, another period":     {files: container("25000 10000\n"), want: 3},
		"version 2, the least period":   {files: container("1000 1000000\n"), want: 1},
		"version 1, more than one":      {files: map[string]string{"proc/self/cgroup": own1, "proc/self/mountinfo": mountCPU, dir1 + "cpu.cfs_quota_us": "150000\n", dir1 + "cpu.cfs_period_us": "100000\n"}, want: 2},
		"version 1, no quota":           {files: map[string]string{"proc/self/cgroup": own1, "proc/self/mountinfo": mountCPU, dir1 + "cpu.cfs_quota_us": "-1\n", dir1 + "cpu.cfs_period_us": "100000\n"}},
		"version 1, without controller": {files: map[string]string{"proc/self/cgroup": own1, "proc/self/mountinfo": mount1}},
		"version 2, a service of systemd, the slice has the lower quota": {
			files: map[string]string{
				"proc/self/cgroup": "0::/system.slice/sonde-dp.service\n", "proc/self/mountinfo": mount2,
				"sys/fs/cgroup/system.slice/sonde-dp.service/cpu.max": "800000 100000\n", "sys/fs/cgroup/system.slice/cpu.max": "250000 100000\n",
			},
			want: 3,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := cpus(fileSystem(t, tc.files))
			if err != nil || got != tc.want {
				t.Errorf("cpus() = %d, %v, want %d", got, err, tc.want)
			}
		})
	}
}

func TestCPUErrors(t *testing.T) {
	for _, text := range []string{"much 100000", "100000", "-1 100000", "0 100000", "100000 0", "100000 100000 5"} {
		files := map[string]string{"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mount2, "sys/fs/cgroup/cpu.max": text}
		if got, err := cpus(fileSystem(t, files)); err == nil || !strings.Contains(err.Error(), "want microseconds of a period, or max") {
			t.Errorf("%q: cpus() = %d, %v, want an error", text, got, err)
		}
	}
}
