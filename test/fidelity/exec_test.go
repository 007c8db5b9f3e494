package fidelity_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	cri "k8s.io/cri-client/pkg"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	utilexec "k8s.io/utils/exec"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/execwire"
	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/exechelper"
	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
	"github.com/sonde-mesh/sonde/test/must"
)

// runtime runs commands on this machine, as a container runtime does in a container, and returns the kubelet's errors.
// Source: containerd internal/cri/server/container_execsync.go, kubernetes k8s.io/cri-client/pkg/remote_runtime.go and
// utils.go.
type runtime struct{ env []string }

// RunInContainer implements kubecontainer.CommandRunner.
func (r runtime) RunInContainer(_ context.Context, _ kubecontainer.ContainerID, command []string, timeout time.Duration) ([]byte, error) {
	var out bytes.Buffer
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = append(os.Environ(), r.env...), &out, &out, &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("rpc error: code = Unknown desc = failed to exec in container: %w", errors.New(err.Error()))
	}
	var late atomic.Bool
	timer := time.AfterFunc(timeout, func() {
		late.Store(true)
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	})
	err := cmd.Wait()
	timer.Stop()
	const maxMsgSize = 16 << 20 // of a response, which has a few bytes more than the output
	switch ended, ok := errors.AsType[*exec.ExitError](err); {
	case out.Len() >= maxMsgSize:
		return nil, errors.New("rpc error: code = ResourceExhausted desc = grpc: received message larger than max")
	case late.Load():
		return nil, fmt.Errorf("%w: command timed out after %s", cri.ErrCommandTimedOut, timeout)
	case ok:
		code := ended.ExitCode()
		if status, is := ended.Sys().(syscall.WaitStatus); is && status.Signaled() {
			code = 128 + int(status.Signal())
		}
		return out.Bytes(), utilexec.CodeExitError{Err: err, Code: code}
	}
	return out.Bytes(), err
}

// TestExec runs exec probes with the kubelet's own code: unchanged, in a runtime, and rewritten by Sonde, through an
// agent and its helper.
func TestExec(t *testing.T) {
	t.Parallel()
	slowtest.Skip(t, "it builds the helper")
	const variable = "SONDE_TEST_EXEC=of the container"
	directory := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(directory, name)
		must.Do(t, os.WriteFile(path, []byte(text), mode))
		return path
	}
	shell := func(script string) []string { return []string{"/bin/sh", "-c", script} } // where the kubelet makes $$ of $$$$
	tests := map[string]struct {
		command []string
		want    string
		native  string // without Sonde, where that differs on purpose: Sonde reads no output
		late    bool   // the command takes longer than its probe may
	}{
		"exit 0":                     {command: shell("exit 0"), want: "Success"},
		"exit 1":                     {command: shell("exit 1"), want: "Failure"},
		"exit 126":                   {command: shell("exit 126"), want: "Failure"},
		"exit 127":                   {command: shell("exit 127"), want: "Failure"},
		"exit 255":                   {command: shell("exit 255"), want: "Failure"},
		"exit 256":                   {command: shell("exit 256"), want: "Success"},
		"found on PATH":              {command: []string{"true"}, want: "Success"},
		"the shell finds no command": {command: shell("sonde-test-missing"), want: "Failure"},
		"SIGKILL":                    {command: shell("kill -KILL $$$$"), want: "Failure"},
		"SIGTERM":                    {command: shell("kill -TERM $$$$"), want: "Failure"},
		"SIGABRT":                    {command: shell("ulimit -c 0; kill -ABRT $$$$"), want: "Failure"},
		"SIGTERM is not ignored":     {command: shell("kill -TERM $$$$; exit 0"), want: "Failure"},
		"it stops itself":            {command: shell("kill -STOP $$$$"), want: "Failure", late: true},
		"timeout":                    {command: []string{"sleep", "60"}, want: "Failure", late: true},
		"timeout, with children":     {command: shell("sleep 60 & sleep 60; true"), want: "Failure", late: true},
		"timeout, SIGTERM ignored":   {command: shell("trap '' TERM HUP INT; sleep 60; exit 0"), want: "Failure", late: true},
		"15 MiB of output":           {command: shell("head -c 15728640 /dev/zero"), want: "Success"},
		"15 MiB of errors":           {command: shell("head -c 15728640 /dev/zero >&2; exit 3"), want: "Failure"},
		"16 MiB of output":           {command: shell("head -c 16777216 /dev/zero"), want: "Success", native: "Errored"},
		"16 MiB of errors":           {command: shell("head -c 16777216 /dev/zero >&2; exit 3"), want: "Failure", native: "Errored"},
		"streams stay open":          {command: shell("sleep 5 & exit 0"), want: "Success", native: "Failure", late: true},
		"standard input is empty":    {command: shell(`[ -z "$(cat)" ]`), want: "Success"},
		"the container's variables":  {command: shell(`[ "$SONDE_TEST_EXEC" = "of the container" ]`), want: "Success"},
		"a session of its own":       {command: shell(`read -r a b c d e session rest </proc/self/stat; [ "$session" = "$a" ]`), want: "Success"},
		"no other descriptors":       {command: shell(`[ ! -e /proc/$$$$/fd/3 ] && [ ! -e /proc/$$$$/fd/4 ]`), want: "Success"},
		"no such program":            {command: []string{"/sonde-test-missing"}, want: "Errored"},
		"no such program on PATH":    {command: []string{"sonde-test-missing"}, want: "Errored"},
		"a directory":                {command: []string{directory}, want: "Errored"},
		"not executable":             {command: []string{file("plain", "#!/bin/sh\n", 0o600)}, want: "Errored"},
		"no interpreter":             {command: []string{file("script", "#!/sonde-test-missing\n", 0o700)}, want: "Errored"},
		"not a program":              {command: []string{file("text", "text", 0o700)}, want: "Errored"},
		"the kubelet's variables":    {command: shell(`[ "$(KUBELET)" = "of the spec" ] && [ '$$(KUBELET)' = '$''(KUBELET)' ]`), want: "Success"},
	}
	pool := newAddressPool(len(tests))
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := pool.take("")
			must.Do(t, err)
			pod := &corev1.Pod{Status: corev1.PodStatus{PodIP: p.IP, PodIPs: []corev1.PodIP{{IP: p.IP}}}}
			timeout := int32(mesh.GuardedTimeoutSeconds) // as long as the test may live
			if tc.late {
				timeout = 2
			}
			c := corev1.Container{Name: "app", Env: []corev1.EnvVar{{Name: "KUBELET", Value: "of the spec"}}, LivenessProbe: &corev1.Probe{
				ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: tc.command}}, TimeoutSeconds: timeout,
			}}
			k := kubelet.New()
			defer k.Close()
			k.Commands = runtime{env: []string{variable}}
			native, _ := k.Probe(t.Context(), pod, c, "liveness")
			// As the kubelet starts the helper: it expands the command of a startup probe in the same way.
			start := execwire.Start{Timeout: time.Duration(timeout) * time.Second, Command: kubecontainer.ExpandContainerCommandOnlyStatic(tc.command, c.Env)}
			socket, _ := exechelper.Serve(t, start, variable)
			c.LivenessProbe = serveExec(t, p.IP, p.Virtual, c, socket)
			sonde, _ := k.Probe(t.Context(), pod, c, "liveness")
			if want := cmp.Or(tc.native, tc.want); native != want || sonde != tc.want {
				t.Errorf("%s natively, %s with Sonde, want %s and %s", native, sonde, want, tc.want)
			}
		})
	}
}

// serveExec serves the exec probe of a container on a port, and returns what the webhook makes of it.
func serveExec(t *testing.T, ip string, port int, c corev1.Container, socket string) *corev1.Probe {
	t.Helper()
	entry := mesh.Probe{
		ID: "app-liveness", Container: "app", Type: mesh.ProbeLiveness, TimeoutSeconds: c.LivenessProbe.TimeoutSeconds,
		Exec: &mesh.ExecProbe{Command: c.LivenessProbe.Exec.Command},
	}
	h, err := probe.New(probe.Options{
		Table: mesh.ProbeTable{entry}, PodIP: netip.MustParseAddr(ip), Port: port,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, socket)
		},
	})
	must.Do(t, err)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", h.Address().String())
	must.Do(t, err)
	ctx, stop := context.WithCancel(context.Background())
	var served sync.WaitGroup
	served.Go(func() {
		if err := h.Serve(ctx, l); err != nil {
			t.Errorf("Serve() error = %v", err)
		}
	})
	t.Cleanup(func() {
		stop()
		served.Wait()
	})
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Scheme: corev1.URISchemeHTTP, Path: entry.VirtualPath(), Port: intstr.FromInt(port),
			HTTPHeaders: []corev1.HTTPHeader{{Name: mesh.ProbeHeader, Value: entry.ID}},
		}},
		TimeoutSeconds: mesh.GuardedTimeoutSeconds,
	}
}
