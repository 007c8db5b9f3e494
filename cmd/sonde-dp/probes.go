package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"os/signal"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/descriptors"
	"github.com/sonde-mesh/sonde/internal/logging"
	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/internal/shutdown"
)

func newProbesCommand(becomeGuard guarding) *cobra.Command {
	var env probe.Environment
	var level slog.Level
	var format logging.Format
	cmd := &cobra.Command{
		Use:   "probes --virtual-probes-port=PORT",
		Short: "Answer the probes of a pod, without Envoy",
		Long: `Answer the probes and hooks in $KUMA_DATAPLANE_PROBES on the virtual port of $INSTANCE_IP, as "sonde-dp run" does, and do
nothing else. Use it for debugging, and in pods without Envoy. Any other request gets 404.`,
		Example: `  INSTANCE_IP=127.0.0.1 KUMA_DATAPLANE_PROBES='[{"httpGet":{"path":"/healthz","port":8080}}]' \
    sonde-dp probes --virtual-probes-port=9000
  curl -i http://127.0.0.1:9000/8080/healthz`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fromEnvironment(&env)
			guard := func() error { return becomeGuard(format) }
			err := runProbes(cmd.Context(), env, newLogger(level, format), guard)
			return mesh.RenameFields(err, map[string]string{"Port": "--virtual-probes-port"})
		},
	}
	f := cmd.Flags()
	f.IntVar(&env.Port, "virtual-probes-port", mesh.PortVirtualProbes, "`port` on $INSTANCE_IP")
	f.Var((*livenessHoldFlag)(&env.Hold), "liveness-hold", "answer to the kubelet if a liveness failure is held back or the probe cannot be checked: errored, which the kubelet discards, or warning, a redirect that it does not follow, for kubelets that count errored probes as failures; the control plane's setting takes precedence")
	settings.LevelVar(f, &level, "")
	settings.LogFormatVar(f, &format)
	return cmd
}

// probesModeFlag is a mesh.ProbesMode.
type probesModeFlag mesh.ProbesMode

// String implements pflag.Value.
func (m *probesModeFlag) String() string { return cmp.Or(string(*m), string(mesh.ProbesUnified)) }

// Set implements pflag.Value.
func (m *probesModeFlag) Set(text string) error {
	mode, err := mesh.ParseProbesMode(text)
	*m = probesModeFlag(mode)
	return err
}

// Type implements pflag.Value.
func (m *probesModeFlag) Type() string { return "mode" }

// livenessHoldFlag is a mesh.LivenessHold.
type livenessHoldFlag mesh.LivenessHold

// String implements pflag.Value.
func (h *livenessHoldFlag) String() string { return cmp.Or(string(*h), string(mesh.HoldErrored)) }

// Set implements pflag.Value.
func (h *livenessHoldFlag) Set(text string) error {
	hold, err := mesh.ParseLivenessHold(text)
	*h = livenessHoldFlag(hold)
	return err
}

// Type implements pflag.Value.
func (h *livenessHoldFlag) Type() string { return "answer" }

// fromEnvironment reads the environment variables that the injector writes.
func fromEnvironment(e *probe.Environment) {
	e.Table, e.InstanceIP = os.Getenv(mesh.EnvProbeTable), os.Getenv(mesh.EnvInstanceIP)
}

// runProbes answers probes until it gets a signal.
func runProbes(ctx context.Context, env probe.Environment, logger *slog.Logger, becomeGuard func() error) error {
	if _, err := env.Options(nil); err != nil { // the worker logs warnings
		return err
	}
	if err := becomeGuard(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, shutdown.Signals()...)
	defer stop()
	o, err := env.Options(logger)
	if err != nil {
		return err
	}
	openFiles, err := descriptors.Limit()
	if err != nil {
		return err
	}
	if o.Connections, err = dpagent.ProbeConnections(openFiles); err != nil {
		return err
	}
	handler, err := probe.New(o)
	if err != nil {
		return err
	}
	all, err := dpagent.ListenProbes(ctx, handler)
	if err != nil {
		return err
	}
	logger.Info("probes", "address", all[0].Addr().String())
	return handler.Serve(ctx, all...)
}
