// Package cgrouptest runs the programs of tests in cgroups with limits.
package cgrouptest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
	"github.com/sonde-mesh/sonde/test/harness"
)

// Group is a cgroup, of version 2 or 1, depending on which has its controller here.
type Group struct {
	Dir string
	V2  bool
}

// New creates a cgroup with a controller, such as "memory", and removes it at the end of the test. It skips the test
// if no cgroup can be created.
func New(t *testing.T, controller string) *Group {
	t.Helper()
	root, v2, err := find(controller)
	if err != nil {
		redirecttest.NotHere(t, err.Error())
	}
	dir, err := os.MkdirTemp(root, "sonde-test-") //nolint:usetesting // in the file system of cgroups
	if err != nil {
		redirecttest.NotHere(t, fmt.Sprintf("no cgroup can be made here: %v", err))
	}
	t.Cleanup(func() {
		must(t, harness.Poll(context.Background(), "the end of the cgroup", func(context.Context) error { return os.Remove(dir) }))
	})
	return &Group{Dir: dir, V2: v2}
}

// find returns the directory where cgroups with a controller can be created.
func find(controller string) (root string, v2 bool, err error) {
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
			children, err := os.ReadFile(filepath.Join(at, "cgroup.subtree_control"))
			if err == nil && slices.Contains(strings.Fields(string(children)), controller) {
				return at, true, nil
			}
		case "cgroup":
			if strings.Contains(","+super[2]+",", ","+controller+",") {
				return at, false, nil
			}
		}
	}
	return "", false, errors.New("no controller" + controller + " for cgroups here")
}

// Set writes a value into a file of the cgroup, whose name depends on the version.
func (g *Group) Set(t *testing.T, file1, file2, value string) {
	t.Helper()
	file := file1
	if g.V2 {
		file = file2
	}
	must(t, os.WriteFile(filepath.Join(g.Dir, file), []byte(value), 0))
}

// Program returns a program that runs another program in the cgroup.
func (g *Group) Program(t *testing.T, program string) string {
	t.Helper()
	return g.script(t, program, "echo $$ >"+g.Dir+"/cgroup.procs")
}

// Agent returns a program that runs the agent and its Envoy, in the cgroup for the named proxy.
func (g *Group) Agent(t *testing.T, agent, proxy string) string {
	t.Helper()
	return g.script(t, agent, `case " $* " in *" --name=`+proxy+` "*) echo $$ >`+g.Dir+"/cgroup.procs;; esac")
}

func (g *Group) script(t *testing.T, program, before string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(program))
	must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+before+"\nexec "+program+" \"$@\"\n"), 0o755))
	return path
}

// must ends the test if err is not nil.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
