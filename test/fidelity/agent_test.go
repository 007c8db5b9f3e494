package fidelity_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent"
	"github.com/sonde-mesh/sonde/dpagent/guard"
	"github.com/sonde-mesh/sonde/dpagent/guard/worker"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/test/fidelity/cases"
	"github.com/sonde-mesh/sonde/test/sondedp"
)

// portVariable sets the virtual port of this program when it runs as an agent in per-port mode. It replaces "sonde-dp
// run", which would need a control plane.
const portVariable = "SONDE_TEST_PORT"

// perPortHandler returns the handler that answers probes in the sidecar of a pod in per-port mode.
func perPortHandler(table, ip string, port int) (*probe.Handler, error) {
	o, err := probe.Environment{Table: table, InstanceIP: ip, Port: port, Mode: mesh.ProbesPerPort}.Options(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return probe.New(o)
}

// runAgent is the program if portVariable is set: a guard and its worker.
func runAgent() error {
	if _, ok := worker.Guarded(); !ok {
		return guard.Exec(os.Args, os.Environ())
	}
	port, err := strconv.Atoi(os.Getenv(portVariable))
	if err != nil {
		return err
	}
	h, err := perPortHandler(os.Getenv(mesh.EnvProbeTable), os.Getenv(mesh.EnvInstanceIP), port)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	all, err := dpagent.ListenProbes(ctx, h)
	if err != nil {
		return err
	}
	return h.Serve(ctx, all...)
}

// servePerPort starts the agent of a pod in per-port mode: this program for a Case.Process, otherwise a handler in this
// process.
func servePerPort(ctx context.Context, pod *corev1.Pod, process bool) (stop func() error, err error) {
	env, port, err := sidecar(pod)
	if err != nil {
		return nil, err
	}
	h, err := perPortHandler(env[mesh.EnvProbeTable], env[mesh.EnvInstanceIP], port)
	if err != nil {
		return nil, err
	}
	if process && len(h.Ports()) > 0 {
		agent, err := startPerPort(env, port, h)
		if err != nil {
			return nil, err
		}
		return agent.Stop, nil
	}
	var all []net.Listener
	for _, p := range h.Ports() {
		l, err := cases.ListenSoon(p.Address.String())
		if err != nil {
			for _, l := range all {
				err = errors.Join(err, l.Close())
			}
			return nil, err
		}
		all = append(all, l)
	}
	return serve(ctx, h, all...), nil
}

// startPerPort starts this program as an agent with the probes of h, which must have Ports.
func startPerPort(env map[string]string, port int, h *probe.Handler) (*sondedp.Agent, error) {
	cmd := exec.CommandContext(context.Background(), os.Args[0]) // Stop or Kill ends it
	cmd.Env = []string{
		portVariable + "=" + strconv.Itoa(port),
		mesh.EnvProbeTable + "=" + env[mesh.EnvProbeTable], mesh.EnvInstanceIP + "=" + env[mesh.EnvInstanceIP],
	}
	return sondedp.Run(cmd, h.Ports()[0].Address.String())
}
