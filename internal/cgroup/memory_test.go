package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	meminfo  = "MemTotal:        1024 kB\nMemFree: 5 kB\n" // 1 MiB
	machine  = 1 << 20
	mount2   = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
	mount1   = "35 24 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
	mountCPU = "36 24 0:31 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
	// mountPod is the mount of version 1 in a container without a cgroup namespace.
	mountPod = "35 24 0:30 /kubepods/pod1/c1 /sys/fs/cgroup/memory ro,relatime - cgroup cgroup rw,memory\n"
)

func TestMemory(t *testing.T) {
	tests := map[string]struct {
		files map[string]string
		want  uint64
	}{
		"no cgroups": {
			files: map[string]string{"proc/self/cgroup": "", "proc/self/mountinfo": ""},
			want:  machine,
		},
		"version 2, as a container sees it": {
			files: map[string]string{"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mount2, "sys/fs/cgroup/memory.max": "4096\n"},
			want:  4096,
		},
		"version 2, no limit": {
			files: map[string]string{"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mount2, "sys/fs/cgroup/memory.max": "max\n"},
			want:  machine,
		},
		"version 2, a limit above the machine's memory": {
			files: map[string]string{"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mount2, "sys/fs/cgroup/memory.max": "1048577\n"},
			want:  machine,
		},
		"version 2, a service of systemd, the slice has the lower limit": {
			files: map[string]string{
				"proc/self/cgroup": "0::/system.slice/sonde-dp.service\n", "proc/self/mountinfo": mount2,
				"sys/fs/cgroup/system.slice/sonde-dp.service/memory.max": "8192\n", "sys/fs/cgroup/system.slice/memory.max": "4096\n",
			},
			want: 4096,
		},
		"version 2, the service has the lower limit": {
			files: map[string]string{
				"proc/self/cgroup": "0::/system.slice/sonde-dp.service\n", "proc/self/mountinfo": mount2,
				"sys/fs/cgroup/system.slice/sonde-dp.service/memory.max": "4096\n", "sys/fs/cgroup/system.slice/memory.max": "8192\n",
			},
			want: 4096,
		},
		"version 1": {
			files: map[string]string{
				"proc/self/cgroup": "4:memory:/a\n3:cpu,cpuacct:/b\n0::/\n", "proc/self/mountinfo": mountCPU + mount1,
				"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "4096\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
			},
			want: 4096,
		},
		"version 1, no limit": {
			files: map[string]string{
				"proc/self/cgroup": "4:memory:/a\n", "proc/self/mountinfo": mount1, "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712\n",
			},
			want: machine,
		},
		"version 1, the mount is the container's own": {
			files: map[string]string{
				"proc/self/cgroup": "4:memory:/kubepods/pod1/c1\n", "proc/self/mountinfo": mountPod, "sys/fs/cgroup/memory/memory.limit_in_bytes": "4096\n",
			},
			want: 4096,
		},
		"version 1, the path is of another namespace than the mount": {
			files: map[string]string{
				"proc/self/cgroup": "4:memory:/\n", "proc/self/mountinfo": mountPod, "sys/fs/cgroup/memory/memory.limit_in_bytes": "4096\n",
			},
			want: 4096,
		},
		"both versions, the one that limits memory counts": {
			files: map[string]string{
				"proc/self/cgroup": "4:memory:/a\n0::/a\n", "proc/self/mountinfo": mount1 + mount2,
				"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "4096\n",
			},
			want: 4096,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := memory(fileSystem(t, tc.files))
			if err != nil || got != tc.want {
				t.Errorf("memory() = %d, %v, want %d", got, err, tc.want)
			}
		})
	}
}

func TestMemoryErrors(t *testing.T) {
	tests := map[string]struct {
		files map[string]string
		want  string
	}{
		"a machine without memory": {files: map[string]string{"proc/meminfo": "MemFree: 5 kB\n"}, want: "no MemTotal"},
		"an invalid limit": {
			files: map[string]string{"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mount2, "sys/fs/cgroup/memory.max": "much\n"},
			want:  `has "much", want a number of bytes or max`,
		},
		"no mounts": {files: map[string]string{"proc/self/cgroup": "0::/\n"}, want: "find the mounts"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := memory(fileSystem(t, tc.files))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("memory() = %d, %v, want an error with %q", got, err, tc.want)
			}
		})
	}
}

// TestHere reads the real files.
func TestHere(t *testing.T) {
	if got, err := Memory(); err != nil || got < 1<<20 {
		t.Errorf("Memory() = %d, %v, want at least 1 MiB", got, err)
	}
	if got, err := CPUs(); err != nil || got < 0 {
		t.Errorf("CPUs() = %d, %v", got, err)
	}
}

func fileSystem(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("proc/meminfo", meminfo)
	for name, text := range files {
		write(name, text)
	}
	return root
}
