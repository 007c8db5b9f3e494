// Command sonde-dp is the agent that runs beside each Envoy of a mesh.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent"
	"github.com/sonde-mesh/sonde/dpagent/guard"
	"github.com/sonde-mesh/sonde/dpagent/guard/worker"
	"github.com/sonde-mesh/sonde/internal/buildinfo"
	"github.com/sonde-mesh/sonde/internal/descriptors"
	"github.com/sonde-mesh/sonde/internal/jsonlog"
	"github.com/sonde-mesh/sonde/internal/reach"
	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/internal/shutdown"
)

func main() {
	log.SetOutput(io.Discard) // net/http would log what applications send
	tuneRuntime()
	os.Exit(settings.Main(context.Background(), newCommand(becomeGuard)))
}

// envPrefix is what variables begin with.
const envPrefix = "SONDE_DP_"

// becomeGuard makes this process a guard, which starts the program again as its worker. It returns nil in the worker.
func becomeGuard() error {
	if _, ok := worker.Guarded(); ok {
		return nil
	}
	return guard.Exec(os.Args, os.Environ())
}

// newCommand returns the command. It calls becomeGuard before it answers probes.
func newCommand(becomeGuard func() error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sonde-dp",
		Short: "The agent of Sonde that runs beside each Envoy",
		Long: `The agent of Sonde that runs beside each Envoy.

Exit codes:
  0  done
  1  failed: the reason is on stderr
  2  wrong usage: a command, argument, flag or variable, or the file that --config names`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	cmd.AddCommand(newRunCommand(becomeGuard), newProbesCommand(becomeGuard), newWaitCommand(new(net.Dialer).DialContext), newDrainCommand(),
		newInstallCommand(), newUninstallCommand(), newCheckCommand())
	buildinfo.Add(cmd)
	completeWords(cmd)
	settings.Install(cmd, settings.Options{Prefix: envPrefix, File: true, Replaced: ofKuma, Unknown: func(_ *cobra.Command, variables []string) {
		if _, guarded := worker.Guarded(); !guarded { // the guard has said it
			newLogger(slog.LevelInfo).Warn("unknown variables of the environment are ignored", "variables", variables)
		}
	}})
	return cmd
}

// newLogger returns a logger that writes JSON to stderr, from that level on.
func newLogger(level slog.Level) *slog.Logger {
	return jsonlog.New(os.Stderr, level)
}

// agentFlags has the flag of each field of dpagent.Options that an error may name.
var agentFlags = map[string]string{ //nolint:gosec // the names of flags are no secrets
	"ControlPlane": "--cp-address", "CAFile": "--ca-cert-file", "Name": "--name", "Mesh": "--mesh", "TokenFile": "--dataplane-token-file",
	"AdminAddress": "--admin-addr", "DrainTime": "--drain-time", "LBHealthPort": "--lb-health-port", "LBDrainTime": "--lb-drain-time",
	"MetricsAddress": "--metrics-addr", "MetricsInclude": "--metrics-include", "EnvoyPath": "--envoy-path", "WorkDir": "--work-dir",
	"Concurrency": "--concurrency", "Probes.Port": "--virtual-probes-port", "Port": "--virtual-probes-port",
}

func newRunCommand(becomeGuard func() error) *cobra.Command {
	o := dpagent.DefaultOptions()
	var config string // read before the command runs
	cmd := &cobra.Command{
		Use:   "run --cp-address=HOST:PORT --ca-cert-file=FILE --name=NAME --dataplane-token-file=FILE",
		Short: "Join the mesh and run Envoy",
		Long: `Join the mesh, run Envoy with the identity that the control plane issues, and keep both up to date.

SIGTERM or SIGINT drains: the control plane removes this proxy from its services, open requests and connections may end,
for at most --drain-time, and then Envoy is stopped. With --lb-health-port it serves on before that, for --lb-drain-time
from when load balancers were told to go. A second signal ends everything at once. SIGHUP, which a closed
terminal sends, drains, too, and nothing more; under nohup it is ignored.`,
		Example: `  # an Envoy for the Dataplane web-1, with a token that "sondectl generate dataplane-token" wrote
  sonde-dp run --cp-address=control-plane.example:5678 --ca-cert-file=serving-ca.crt \
    --name=web-1 --dataplane-token-file=web-1.token

  # the same, with the flags in a file, or as variables
  sonde-dp run --config=/etc/sonde/web-1.yaml
  SONDE_DP_NAME=web-1 sonde-dp run --config=/etc/sonde/all.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Version = buildinfo.Of(cmd.Root().Name()).Version
			fromEnvironment(&o.Probes)
			if cmd.Flags().Changed("metrics-include") && len(o.MetricsInclude) == 0 {
				return &mesh.FieldError{Field: "--metrics-include", Allowed: "must not be empty: envoy_ is all of Envoy's metrics"}
			}
			return mesh.RenameFields(run(cmd.Context(), o, newLogger(o.Level), becomeGuard), agentFlags)
		},
	}
	f := cmd.Flags()
	f.StringVar(&config, "config", "", "YAML `file` with these flags as keys (cpAddress for cp-address). A flag takes precedence over its variable (SONDE_DP_CP_ADDRESS), and that over its key")
	f.Var(&reach.AddressFlag{Service: reach.Agents, To: &o.ControlPlane}, "cp-address", "`host:port` of the control plane (required)")
	f.StringVar(&o.CAFile, "ca-cert-file", "", "`file` with the control plane's serving CA, PEM (required)")
	f.StringVar(&o.Name, "name", "", "`name` of this proxy's Dataplane (required)")
	f.StringVar(&o.Mesh, "mesh", o.Mesh, "`name` of its mesh")
	f.StringVar(&o.TokenFile, "dataplane-token-file", "", "`file` with the token to join with, read at each attempt that needs it (required)")
	f.StringVar(&o.AdminAddress, "admin-addr", o.AdminAddress, "`host:port` for /metrics, /livez and /readyz; port 0 means a free one")
	f.DurationVar(&o.DrainTime, "drain-time", o.DrainTime, "longest wait for open requests and connections in a drain")
	f.BoolVar(&o.LastToEnd, "last-to-end", false, "the applications have ended before this program is told to: a drain waits for no more clients")
	f.IntVar(&o.LBHealthPort, "lb-health-port", 0, "`port` on all addresses for /healthz and /livez of load balancers; 0: none")
	f.DurationVar(&o.LBDrainTime, "lb-drain-time", o.LBDrainTime, "how long to serve on after load balancers were told that this proxy ends, before the drain begins; not with --last-to-end")
	f.StringVar(&o.MetricsAddress, "metrics-addr", "", "`host:port` for Prometheus: /metrics, with the metrics of this program and of Envoy, and nothing else; no host means all addresses, port 0 a free one (default: none)")
	f.StringSliceVar(&o.MetricsInclude, "metrics-include", nil, "`prefixes` of the names of Envoy's metrics at --metrics-addr (default: those that docs/metrics.md lists)")
	f.StringVar(&o.EnvoyPath, "envoy-path", "", "Envoy `binary` (default: envoy in the directory of this program, else on PATH)")
	f.StringVar(&o.WorkDir, "work-dir", "", "`directory` for Envoy's bootstrap, secrets and sockets; with the certificate in it the agent joins again (default: a new one under $TMPDIR, removed at the end)")
	f.IntVar(&o.Concurrency, "concurrency", o.Concurrency, fmt.Sprintf("Envoy's worker threads; 0: one for each processor of the CPU limit, rounded up, and %d without a limit", mesh.DefaultConcurrency))
	f.IntVar(&o.Probes.Port, "virtual-probes-port", mesh.PortVirtualProbes, "`port` on $INSTANCE_IP for the probes of $KUMA_DATAPLANE_PROBES; 0, or no probes: none")
	f.Var((*probesModeFlag)(&o.Probes.Mode), "virtual-probes-mode", "where probes are asked: unified, all on one port, or per-port, those by gRPC on ports of their own")
	settings.LevelVar(f, &o.Level, "`LEVEL`: debug, info, warn or error; Envoy's level is info at debug, and warning at info")
	return cmd
}

// answersProbes reports whether an agent with these options will answer probes. The error joins what is wrong with them.
func answersProbes(o dpagent.Options) (bool, error) {
	needed, err := o.Probes.Needed()
	return needed, errors.Join(o.Validate(), err)
}

// run runs the agent, in the worker of a guard if it answers probes. The first signal makes it drain, the second one ends it.
func run(ctx context.Context, o dpagent.Options, logger *slog.Logger, becomeGuard func() error) error {
	if needed, err := answersProbes(o); err != nil {
		return err
	} else if needed {
		if err := becomeGuard(); err != nil {
			return err
		}
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, shutdown.Signals()...)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var err error
	if o.OpenFiles, err = descriptors.Limit(); err != nil {
		return err
	}
	agent, err := dpagent.New(ctx, o, logger)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	for first := true; ; first = false {
		select {
		case err := <-ended:
			return err
		case s := <-signals:
			logger.Info("signal", "signal", s.String(), "first", first)
			switch {
			case first:
				agent.Drain()
			case s != syscall.SIGHUP: // shell and kernel may each send one when a terminal closes: it does not mean to hurry
				cancel()
			}
		}
	}
}
