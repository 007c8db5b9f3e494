package fidelity_test

import (
	"bytes"
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

// runtime runs commands on this machine, as a container runtime does in a container, and returns errors as the kubelet gets them.
// Source: containerd internal/cri/server/container_execsync.go, kubernetes k8s.io/cri-client/pkg/remote_runtime.go.
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
	switch ended, ok := errors.AsType[*exec.ExitError](err); {
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

// TestExec asks exec probes by the kubelet's own code: as they are, of a runtime, and as Sonde rewrites them, of an agent and its helper.
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
	}{
		"exit 0":                     {shell("exit 0"), "Success"},
		"exit 1":                     {shell("exit 1"), "Failure"},
		"exit 126":                   {shell("exit 126"), "Failure"},
		"exit 127":                   {shell("exit 127"), "Failure"},
		"exit 255":                   {shell("exit 255"), "Failure"},
		"exit 256":                   {shell("exit 256"), "Success"},
		"found on PATH":              {[]string{"true"}, "Success"},
		"the shell finds no command": {shell("sonde-test-missing"), "Failure"},
		"SIGKILL":                    {shell("kill -KILL $$$$"), "Failure"},
		"SIGTERM":                    {shell("kill -TERM $$$$"), "Failure"},
		"SIGABRT":                    {shell("ulimit -c 0; kill -ABRT $$$$"), "Failure"},
		"SIGTERM is not ignored":     {shell("kill -TERM $$$$; exit 0"), "Failure"},
		"it stops itself":            {shell("kill -STOP $$$$"), "Failure"},
		"timeout":                    {[]string{"sleep", "60"}, "Failure"},
		"timeout, with children":     {shell("sleep 60 & sleep 60; true"), "Failure"},
		"timeout, SIGTERM ignored":   {shell("trap '' TERM HUP INT; sleep 60; exit 0"), "Failure"},
		"16 MiB of output":           {shell("head -c 16777216 /dev/zero"), "Success"},
		"16 MiB of errors":           {shell("head -c 16777216 /dev/zero >&2; exit 3"), "Failure"},
		"standard input is empty":    {shell(`[ -z "$(cat)" ]`), "Success"},
		"the container's variables":  {shell(`[ "$SONDE_TEST_EXEC" = "of the container" ]`), "Success"},
		"a session of its own":       {shell(`read -r a b c d e session rest </proc/self/stat; [ "$session" = "$a" ]`), "Success"},
		"no other descriptors":       {shell(`[ ! -e /proc/$$$$/fd/3 ] && [ ! -e /proc/$$$$/fd/4 ]`), "Success"},
		"no such program":            {[]string{"/sonde-test-missing"}, "Errored"},
		"no such program on PATH":    {[]string{"sonde-test-missing"}, "Errored"},
		"a directory":                {[]string{directory}, "Errored"},
		"not executable":             {[]string{file("plain", "#!/bin/sh\n", 0o600)}, "Errored"},
		"no interpreter":             {[]string{file("script", "#!/sonde-test-missing\n", 0o700)}, "Errored"},
		"not a program":              {[]string{file("text", "text", 0o700)}, "Errored"},
		"the kubelet's variables":    {shell(`[ "$(KUBELET)" = "of the spec" ] && [ '$$(KUBELET)' = '$''(KUBELET)' ]`), "Success"},
	}
	pool := newAddressPool(len(tests))
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := pool.take("")
			must.Do(t, err)
			pod := &corev1.Pod{Status: corev1.PodStatus{PodIP: p.IP, PodIPs: []corev1.PodIP{{IP: p.IP}}}}
			c := corev1.Container{Name: "app", Env: []corev1.EnvVar{{Name: "KUBELET", Value: "of the spec"}}, LivenessProbe: &corev1.Probe{
				ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: tc.command}}, TimeoutSeconds: 2,
			}}
			k := kubelet.New()
			defer k.Close()
			k.Commands = runtime{env: []string{variable}}
			native, _ := k.Probe(t.Context(), pod, c, "liveness")
			// As the kubelet starts the helper: it expands the command of a startup probe in the same way.
			start := execwire.Start{Timeout: 2 * time.Second, Command: kubecontainer.ExpandContainerCommandOnlyStatic(tc.command, c.Env)}
			socket, _ := exechelper.Serve(t, start, variable)
			c.LivenessProbe = serveExec(t, p.IP, p.Virtual, tc.command, socket)
			sonde, _ := k.Probe(t.Context(), pod, c, "liveness")
			if native != tc.want || sonde != tc.want {
				t.Errorf("%s natively, %s with Sonde, want %s", native, sonde, tc.want)
			}
		})
	}
}

// serveExec serves an exec probe on a port, and returns what the webhook makes of it.
func serveExec(t *testing.T, ip string, port int, command []string, socket string) *corev1.Probe {
	t.Helper()
	entry := mesh.Probe{
		ID: "app-liveness", Container: "app", Type: mesh.ProbeLiveness, TimeoutSeconds: 2, Exec: &mesh.ExecProbe{Command: command},
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
