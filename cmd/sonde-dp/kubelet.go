package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os/signal"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/dpagent/trial"
	"github.com/sonde-mesh/sonde/internal/shutdown"
)

func newCheckKubeletCommand() *cobra.Command {
	var env probe.Environment
	var within time.Duration
	cmd := &cobra.Command{
		Use:   "kubelet",
		Short: "Check whether the kubelet discards errored liveness probes",
		Long: `Answer the liveness probe in $KUMA_DATAPLANE_PROBES on the virtual port of $INSTANCE_IP as "sonde-dp run" does while it
holds a failure back, and report whether the kubelet discards that answer. "sondectl check --nodes" runs this command in
a container with that probe, periodSeconds: 1 and failureThreshold: 1.

The exit code is 0 if the kubelet has sent the probe in four periods, has counted each answer as errored, and has not
stopped the container.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fromEnvironment(&env)
			if within <= 0 {
				return &mesh.FieldError{Field: "--within", Value: within.String(), Allowed: "must be more than 0"}
			}
			err := checkKubelet(cmd.Context(), cmd.OutOrStdout(), env, within)
			return mesh.RenameFields(err, map[string]string{"Port": "--virtual-probes-port"})
		},
	}
	f := cmd.Flags()
	f.IntVar(&env.Port, "virtual-probes-port", mesh.PortVirtualProbes, "`port` on $INSTANCE_IP")
	f.DurationVar(&within, "within", time.Minute, "maximum wait for the kubelet's probes")
	return cmd
}

// checkKubelet answers probes until the kubelet's behaviour is clear, or until a signal.
func checkKubelet(ctx context.Context, out io.Writer, env probe.Environment, within time.Duration) error {
	ctx, stop := signal.NotifyContext(ctx, shutdown.Signals()...)
	defer stop()
	o, err := env.Options(nil)
	if err != nil {
		return err
	}
	if len(o.Table) != 1 || !o.Table[0].Guarded || o.Table[0].Type != mesh.ProbeLiveness {
		return fmt.Errorf("%s: must have one guarded liveness probe and nothing else", mesh.EnvProbeTable)
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", net.JoinHostPort(env.InstanceIP, strconv.Itoa(env.Port)))
	if err != nil {
		return fmt.Errorf("listen on the port for the probe: %w", err)
	}
	if err := trial.Run(ctx, trial.Options{Probes: o, Listener: l, Within: within}); err != nil {
		return err
	}
	return report(out, "the kubelet discards errored liveness probes")
}
