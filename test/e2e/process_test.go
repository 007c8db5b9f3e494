//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// process is a process of a pod. Images have no shell, so tests find processes on the machine that runs the
// nodes.
type process struct {
	pid int
	// command is its command line.
	command []string
	// first means that it is the first process of its container: if it ends, so does the container.
	first bool
}

// processes returns the processes of a pod.
func (n *namespace) processes(pod *corev1.Pod) []process {
	n.t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		n.t.Fatal(err)
	}
	var found []process
	for _, path := range paths {
		cgroups, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(cgroups, []byte("pod"+string(pod.UID))) {
			continue // it has ended, or belongs to another pod
		}
		directory := filepath.Dir(path)
		pid, err := strconv.Atoi(filepath.Base(directory))
		if err != nil {
			n.t.Fatal(err)
		}
		command, errCommand := os.ReadFile(filepath.Join(directory, "cmdline"))
		text, errStatus := os.ReadFile(filepath.Join(directory, "status"))
		if errCommand != nil || errStatus != nil {
			continue
		}
		p := process{pid: pid, command: strings.Split(strings.TrimSuffix(string(command), "\x00"), "\x00")}
		for line := range strings.Lines(string(text)) {
			if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
				fields := strings.Fields(ids)
				p.first = fields[len(fields)-1] == "1"
			}
		}
		found = append(found, p)
	}
	return found
}

// agent returns the guard of a pod's agent, or its worker.
func (n *namespace) agent(pod *corev1.Pod, guard bool) process {
	n.t.Helper()
	all := n.processes(pod)
	for _, p := range all {
		if len(p.command) > 1 && p.command[0] == "/usr/bin/sonde-dp" && p.command[1] == "run" && p.first == guard {
			return p
		}
	}
	n.t.Fatalf("pod %s has no such process: %+v", pod.Name, all)
	return process{}
}

func (p process) kill(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGKILL)
}

func (p process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(p.pid, s); err != nil {
		t.Fatal(err)
	}
}

// onNetworkOf runs a command of this machine in the network namespace of a process.
func onNetworkOf(t *testing.T, p process, command ...string) {
	t.Helper()
	args := append([]string{fmt.Sprintf("--net=/proc/%d/ns/net", p.pid)}, command...)
	if out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "nsenter", args...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v: %s", args, err, out)
	}
}

// testbed runs a command of bin/testbed on the cluster.
func testbed(t *testing.T, args ...string) {
	t.Helper()
	if err := tryTestbed(context.WithoutCancel(t.Context()), args...); err != nil {
		t.Fatal(err)
	}
}

// tryTestbed is testbed for a command that may fail.
func tryTestbed(ctx context.Context, args ...string) error {
	args = append([]string{"--state=" + filepath.Dir(os.Getenv("KUBECONFIG"))}, args...)
	if out, err := exec.CommandContext(ctx, os.Getenv("SONDE_E2E_TESTBED"), args...).CombinedOutput(); err != nil {
		return fmt.Errorf("testbed %q (SONDE_E2E_TESTBED is its program): %w: %s", args, err, out)
	}
	return nil
}
