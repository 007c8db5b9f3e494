package hostile

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/cgrouptest"
)

// sidecarMemory is the memory limit that an injected sidecar has.
const sidecarMemory = 512 << 20

// cgroup limits the memory of processes.
type cgroup struct{ *cgrouptest.Group }

// newCgroup makes a cgroup with a memory limit in bytes.
func newCgroup(t *testing.T, limit int64) *cgroup {
	t.Helper()
	g := cgrouptest.New(t, "memory")
	g.Set(t, "memory.limit_in_bytes", "memory.max", strconv.FormatInt(limit, 10))
	return &cgroup{g}
}

// peak is the most memory that was charged, in bytes.
func (g *cgroup) peak(t *testing.T) int64 {
	t.Helper()
	if g.V2 {
		return g.number(t, "memory.peak")
	}
	return g.number(t, "memory.max_usage_in_bytes")
}

func (g *cgroup) number(t *testing.T, file string) int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(g.Dir, file))
	must(t, err)
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	must(t, err)
	return n
}

// killed is how many processes were killed for lack of memory.
func (g *cgroup) killed(t *testing.T) int {
	t.Helper()
	file := "memory.oom_control"
	if g.V2 {
		file = "memory.events"
	}
	text, err := os.ReadFile(filepath.Join(g.Dir, file))
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

// limitOfWait bounds each wait. It is far longer than needed on a machine that is not busy.
const limitOfWait = 20 * time.Second

// must ends the test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
