package fidelity_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent"
	"github.com/sonde-mesh/sonde/dpagent/guard"
	"github.com/sonde-mesh/sonde/dpagent/guard/worker"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/test/sondedp"
)

// Variables of this program as an agent behind Envoy, which "sonde-dp run" would be, with a control plane.
const (
	socketVariable = "SONDE_TEST_SOCKET"
	portVariable   = "SONDE_TEST_PORT"
)

// behindEnvoy is what the sidecar of a pod in per-port mode answers HTTP probes from.
func behindEnvoy(table, ip string, port int) (*probe.Handler, error) {
	o, err := probe.Environment{Table: table, InstanceIP: ip, Port: port, Mode: mesh.ProbesPerPort}.Options(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return probe.New(o)
}

// runAgent is the program with socketVariable set: a guard, and its worker.
func runAgent() error {
	if _, ok := worker.Guarded(); !ok {
		return guard.Exec(os.Args, os.Environ())
	}
	port, err := strconv.Atoi(os.Getenv(portVariable))
	if err != nil {
		return err
	}
	h, err := behindEnvoy(os.Getenv(mesh.EnvProbeTable), os.Getenv(mesh.EnvInstanceIP), port)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	l, err := dpagent.ListenProbes(ctx, h, os.Getenv(socketVariable))
	if err != nil {
		return err
	}
	return h.Serve(ctx, l)
}

// serveBehind starts the agent of a pod at its socket in the directory of an Envoy: this program for a Case.Process, else a handler of
// this process.
func serveBehind(ctx context.Context, pod *corev1.Pod, directory string, process bool) (stop func() error, err error) {
	socket := filepath.Join(directory, mesh.SocketProbes)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	env, port, err := sidecar(pod)
	if err != nil {
		return nil, err
	}
	if process {
		agent, err := startBehind(env, port, socket)
		if err != nil {
			return nil, err
		}
		return agent.Stop, nil
	}
	h, err := behindEnvoy(env[mesh.EnvProbeTable], env[mesh.EnvInstanceIP], port)
	if err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	return serve(ctx, h, l), nil
}

// startBehind starts this program as an agent behind Envoy.
func startBehind(env map[string]string, port int, socket string) (*sondedp.Agent, error) {
	cmd := exec.CommandContext(context.Background(), os.Args[0]) // it ends by Stop or Kill
	cmd.Env = []string{
		socketVariable + "=" + socket, portVariable + "=" + strconv.Itoa(port),
		mesh.EnvProbeTable + "=" + env[mesh.EnvProbeTable], mesh.EnvInstanceIP + "=" + env[mesh.EnvInstanceIP],
	}
	return sondedp.Run(cmd, "unix", socket)
}
