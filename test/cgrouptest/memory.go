package cgrouptest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Memory limits the memory of processes.
type Memory struct{ *Group }

// NewMemory creates a cgroup with a memory limit in bytes, as New does.
func NewMemory(t *testing.T, limit int64) *Memory {
	t.Helper()
	g := New(t, "memory")
	g.Set(t, "memory.limit_in_bytes", "memory.max", strconv.FormatInt(limit, 10))
	return &Memory{g}
}

// Peak returns the peak memory of the cgroup, in bytes.
func (m *Memory) Peak(t *testing.T) int64 {
	t.Helper()
	if m.V2 {
		return m.number(t, "memory.peak")
	}
	return m.number(t, "memory.max_usage_in_bytes")
}

func (m *Memory) number(t *testing.T, file string) int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(m.Dir, file))
	must(t, err)
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	must(t, err)
	return n
}

// Killed returns how many processes were killed for lack of memory.
func (m *Memory) Killed(t *testing.T) int {
	t.Helper()
	file := "memory.oom_control"
	if m.V2 {
		file = "memory.events"
	}
	text, err := os.ReadFile(filepath.Join(m.Dir, file))
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			count, err := strconv.Atoi(strings.TrimSpace(n))
			must(t, err)
			return count
		}
	}
	t.Fatalf("%s does not count the processes that were killed:\n%s", file, text)
	return 0
}
