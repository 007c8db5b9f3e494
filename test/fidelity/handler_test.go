package fidelity_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/webhook"
)

// handlers inject pods and start their virtual probe handlers.
type handlers struct {
	// directory of sonde-dp and sondectl.
	directory string
}

// build builds the programs into a directory.
func build(ctx context.Context, directory string) (*handlers, error) {
	root, err := harness.Root()
	if err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", directory+"/", "./cmd/sonde-dp", "./cmd/sondectl")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return &handlers{directory: directory}, nil
}

// injectHere injects a pod as the webhook does.
func injectHere(_ context.Context, pod *corev1.Pod, o webhook.Options) (*corev1.Pod, []string, error) {
	document, err := json.Marshal(pod)
	if err != nil {
		return nil, nil, err
	}
	document, warnings, err := webhook.InjectJSON(document, o)
	if err != nil {
		return nil, nil, err
	}
	injected := &corev1.Pod{}
	return injected, warnings, json.Unmarshal(document, injected)
}

// inject has sondectl do it.
func (h *handlers) inject(ctx context.Context, pod *corev1.Pod, o webhook.Options) (*corev1.Pod, []string, error) {
	document, err := yaml.Marshal(pod)
	if err != nil {
		return nil, nil, err
	}
	command := exec.CommandContext(ctx, filepath.Join(h.directory, "sondectl"),
		"inject", "-f", "-", "--virtual-probes-port", strconv.Itoa(int(o.VirtualProbesPort)))
	if o.Sidecar != "" {
		command.Args = append(command.Args, "--sidecar", string(o.Sidecar))
	}
	var out, problems bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(document), &out, &problems
	if err := command.Run(); err != nil {
		return nil, nil, fmt.Errorf("sondectl inject: %w\n%s", err, problems.String())
	}
	injected := &corev1.Pod{}
	return injected, slices.Collect(strings.Lines(problems.String())), yaml.UnmarshalStrict(out.Bytes(), injected)
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
func (handlers) here(ctx context.Context, pod *corev1.Pod, _ podAddress) (stop func() error, err error) {
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
	l, err := listenSoon(h.Address().String())
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
func (h *handlers) process(ctx context.Context, pod *corev1.Pod, p podAddress) (stop func() error, err error) {
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
func (handlers) ready(ctx context.Context, a *agent, p podAddress) error {
	address := p.virtualAddress()
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
	a.command = exec.CommandContext(ctx, filepath.Join(h.directory, "sonde-dp"), "probes", "--virtual-probes-port="+strconv.Itoa(port))
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
