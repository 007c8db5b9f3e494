package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/redirect/redirecttest"
	"github.com/sonde-mesh/sonde/test/harness"
)

// sidecarMemory is the memory limit that an injected sidecar has.
const sidecarMemory = 512 << 20

// cgroup limits the memory of processes.
type cgroup struct {
	dir string
	v2  bool
}

// newCgroup makes a cgroup with a memory limit in bytes, of version 2 or 1, whichever has the controller here. It is removed at the end of
// the test, which is skipped where none can be made.
func newCgroup(t *testing.T, limit int64) *cgroup {
	t.Helper()
	root, v2, err := memoryController()
	if err != nil {
		redirecttest.NotHere(t, err.Error())
	}
	dir, err := os.MkdirTemp(root, "sonde-hostile-") //nolint:usetesting // in the file system of cgroups
	if err != nil {
		redirecttest.NotHere(t, fmt.Sprintf("no cgroup can be made here: %v", err))
	}
	g := &cgroup{dir: dir, v2: v2}
	t.Cleanup(func() {
		must(t, harness.Poll(context.Background(), limitOfWait, "the end of the cgroup", func(context.Context) error { return os.Remove(dir) }))
	})
	file := "memory.limit_in_bytes"
	if v2 {
		file = "memory.max"
	}
	must(t, os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(limit, 10)), 0))
	return g
}

// memoryController returns where cgroups with a memory limit can be made.
func memoryController() (root string, v2 bool, err error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", false, err
	}
	for line := range strings.Lines(string(mounts)) {
		before, after, _ := strings.Cut(line, " - ")
		fields, super := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(super) < 3 {
			continue
		}
		switch at := fields[4]; super[0] {
		case "cgroup2":
			if children, err := os.ReadFile(filepath.Join(at, "cgroup.subtree_control")); err == nil && bytes.Contains(children, []byte("memory")) {
				return at, true, nil
			}
		case "cgroup":
			if strings.Contains(","+super[2]+",", ",memory,") {
				return at, false, nil
			}
		}
	}
	return "", false, errors.New("there is no memory controller for cgroups here")
}

// agent returns a program that runs the agent, with its Envoy, inside of the cgroup if it is that of the proxy.
func (g *cgroup) agent(t *testing.T, agent, proxy string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent")
	script := fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *\" --name=%s \"*) echo $$ >%s/cgroup.procs;; esac\nexec %s \"$@\"\n", proxy, g.dir, agent)
	must(t, os.WriteFile(path, []byte(script), 0o755))
	return path
}

// peak is the most memory that was charged, in bytes.
func (g *cgroup) peak(t *testing.T) int64 {
	t.Helper()
	if g.v2 {
		return g.number(t, "memory.peak")
	}
	return g.number(t, "memory.max_usage_in_bytes")
}

func (g *cgroup) number(t *testing.T, file string) int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	must(t, err)
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	must(t, err)
	return n
}

// killed is how many processes were killed for lack of memory.
func (g *cgroup) killed(t *testing.T) int {
	t.Helper()
	file := "memory.oom_control"
	if g.v2 {
		file = "memory.events"
	}
	text, err := os.ReadFile(filepath.Join(g.dir, file))
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
