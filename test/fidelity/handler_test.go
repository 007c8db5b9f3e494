package fidelity_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/test/harness"
)

// handlers start the virtual probe handler of a pod.
type handlers struct {
	// program is the path of sonde-dp.
	program string
}

// buildAgent builds sonde-dp into a folder.
func buildAgent(ctx context.Context, folder string) (string, error) {
	root, err := harness.Root()
	if err != nil {
		return "", err
	}
	program := filepath.Join(folder, "sonde-dp")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "./cmd/sonde-dp")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build sonde-dp: %w\n%s", err, out)
	}
	return program, nil
}

// sidecar returns the environment and the virtual port of the agent in a pod, as the kubelet would make them.
func sidecar(pod *corev1.Pod) (env map[string]string, port int, err error) {
	c, err := find(pod, "kuma-sidecar")
	if err != nil {
		return nil, 0, err
	}
	env = map[string]string{}
	for _, v := range c.Env {
		switch {
		case v.ValueFrom == nil:
			env[v.Name] = expansion.Expand(v.Value, expansion.MappingFuncFor(env))
		case v.ValueFrom.FieldRef != nil && v.ValueFrom.FieldRef.FieldPath == "status.podIP":
			env[v.Name] = pod.Status.PodIP
		case v.ValueFrom.FieldRef != nil && v.ValueFrom.FieldRef.FieldPath == "metadata.name":
			env[v.Name] = pod.Name
		}
	}
	for _, arg := range c.Args {
		if value, ok := strings.CutPrefix(arg, "--virtual-probes-port="); ok {
			port, err = strconv.Atoi(value)
			return env, port, err
		}
	}
	return nil, 0, fmt.Errorf("find --virtual-probes-port: it is not in %q", c.Args)
}

// here runs the handler in this process.
func (handlers) here(ctx context.Context, pod *corev1.Pod, _ place) (stop func() error, err error) {
	env, port, err := sidecar(pod)
	if err != nil {
		return nil, err
	}
	options, err := probe.Environment{
		Table: env[mesh.EnvProbeTable], InstanceIP: env[mesh.EnvInstanceIP], Port: port,
	}.Options(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	h, err := probe.New(options)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", h.Address().String())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- h.Serve(ctx, l) }()
	return func() error {
		cancel()
		return <-ended
	}, nil
}

// process runs sonde-dp probes.
func (h *handlers) process(ctx context.Context, pod *corev1.Pod, p place) (stop func() error, err error) {
	agent, err := h.start(ctx, pod)
	if err != nil {
		return nil, err
	}
	if err := h.ready(ctx, agent, p); err != nil {
		return nil, err
	}
	return agent.stop, nil
}

// ready waits until an agent listens.
func (handlers) ready(ctx context.Context, a *agent, p place) error {
	address := net.JoinHostPort(p.ip, strconv.Itoa(p.virtual))
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		dialer := net.Dialer{Timeout: time.Second}
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-a.ended:
			return fmt.Errorf("sonde-dp probes: %w\n%s", a.err, a.log.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
	_ = a.stop() // what is below says more
	return fmt.Errorf("wait for sonde-dp probes: %s\n%s", address, a.log.String())
}

// agent is a running sonde-dp probes.
type agent struct {
	command *exec.Cmd
	log     safeLog
	// ended is closed when err is set.
	ended chan struct{}
	err   error
}

// safeLog is written while it is read.
type safeLog struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write appends.
func (l *safeLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns what has been written so far.
func (l *safeLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (h *handlers) start(ctx context.Context, pod *corev1.Pod) (*agent, error) {
	env, port, err := sidecar(pod)
	if err != nil {
		return nil, err
	}
	a := &agent{ended: make(chan struct{})}
	a.command = exec.CommandContext(ctx, h.program, "probes", "--virtual-probes-port="+strconv.Itoa(port))
	a.command.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	for _, name := range []string{"http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy"} {
		a.command.Env = append(a.command.Env, name+"=http://127.0.0.1:1") // probes go by none
	}
	for name, value := range env {
		a.command.Env = append(a.command.Env, name+"="+value)
	}
	a.command.Stdout, a.command.Stderr = &a.log, &a.log
	if err := a.command.Start(); err != nil {
		return nil, err
	}
	go func() {
		a.err = a.command.Wait()
		close(a.ended)
	}()
	return a, nil
}

func (a *agent) stop() error {
	if err := a.command.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if <-a.ended; a.err != nil {
		return fmt.Errorf("end sonde-dp probes: %w\n%s", a.err, a.log.String())
	}
	return nil
}
