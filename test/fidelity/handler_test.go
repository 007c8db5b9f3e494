package fidelity_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/test/fidelity/cases"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/sondedp"
	"github.com/sonde-mesh/sonde/webhook"
)

// handlers inject pods and start their virtual probe handlers.
type handlers struct {
	// directory has sonde-dp and sondectl.
	directory string
}

// build builds the programs in a directory.
func build(ctx context.Context, directory string) (*handlers, error) {
	for _, program := range []string{"cmd/sonde-dp", "cmd/sondectl"} {
		if _, err := harness.BuildInto(ctx, directory, program); err != nil {
			return nil, err
		}
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

// inject injects a pod with sondectl.
func (h *handlers) inject(ctx context.Context, pod *corev1.Pod, o webhook.Options) (*corev1.Pod, []string, error) {
	document, err := yaml.Marshal(pod)
	if err != nil {
		return nil, nil, err
	}
	command := exec.CommandContext(ctx, filepath.Join(h.directory, "sondectl"),
		"inject", "-f", "-", "--virtual-probes-port", strconv.Itoa(int(o.VirtualProbesPort)))
	if o.ProbesMode != "" {
		command.Args = append(command.Args, "--virtual-probes-mode", string(o.ProbesMode))
	}
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

// sidecar returns the environment and the virtual port of a pod's agent, as the kubelet would compute them.
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
	return nil, 0, fmt.Errorf("find --virtual-probes-port: not in %q", c.Args)
}

// here runs the handler in this process.
func (handlers) here(ctx context.Context, pod *corev1.Pod, _ cases.PodAddress) (stop func() error, err error) {
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
	l, err := cases.ListenSoon(h.Address().String())
	if err != nil {
		return nil, err
	}
	return serve(ctx, h, l), nil
}

// serve runs a handler until stop is called.
func serve(ctx context.Context, h *probe.Handler, all ...net.Listener) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- h.Serve(ctx, all...) }()
	return func() error {
		cancel()
		return <-ended
	}
}

// process runs sonde-dp probes.
func (h *handlers) process(_ context.Context, pod *corev1.Pod, p cases.PodAddress) (stop func() error, err error) {
	agent, err := h.start(pod, p)
	if err != nil {
		return nil, err
	}
	return agent.Stop, nil
}

// start runs sonde-dp probes as the sidecar of a pod would.
func (h *handlers) start(pod *corev1.Pod, p cases.PodAddress) (*sondedp.Agent, error) {
	env, port, err := sidecar(pod)
	if err != nil {
		return nil, err
	}
	if port != p.Virtual {
		return nil, fmt.Errorf("the virtual port is %d, want %d", port, p.Virtual)
	}
	at := netip.AddrPortFrom(netip.MustParseAddr(p.IP), uint16(port))
	var all []string
	for _, name := range []string{"http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy"} {
		all = append(all, name+"=http://127.0.0.1:1") // no probe uses them
	}
	for name, value := range env {
		all = append(all, name+"="+value)
	}
	return sondedp.Start(filepath.Join(h.directory, "sonde-dp"), at, slog.LevelInfo, env[mesh.EnvProbeTable], all...)
}
