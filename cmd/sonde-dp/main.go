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
	"github.com/sonde-mesh/sonde/internal/logging"
	"github.com/sonde-mesh/sonde/internal/reach"
	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/internal/shutdown"
)

func main() {
	log.SetOutput(io.Discard) // net/http would log data that applications send
	tuneRuntime()
	os.Exit(settings.Main(context.Background(), newCommand(becomeGuard)))
}

// envPrefix begins the names of the environment variables that set flags.
const envPrefix = "SONDE_DP_"

// guarding turns this process into a guard, which logs in this format.
type guarding func(logging.Format) error

// becomeGuard turns this process into a guard, which starts the same program as its worker. In the worker, it returns
// nil.
func becomeGuard(f logging.Format) error {
	if _, ok := worker.Guarded(); ok {
		return nil
	}
	if err := os.Setenv(guard.LogFormat, string(f.For(os.Stderr))); err != nil {
		return fmt.Errorf("set %s: %w", guard.LogFormat, err)
	}
	return guard.Exec(os.Args, os.Environ())
}

// newCommand returns the root command, which calls becomeGuard before it answers probes.
func newCommand(becomeGuard guarding) *cobra.Command {
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
	cmd.AddCommand(newRunCommand(becomeGuard), newProbesCommand(becomeGuard),
		newWaitCommand(new(net.Dialer).DialContext), newDrainCommand(), newInstallCommand(), newUninstallCommand(),
		newCheckCommand())
	buildinfo.Add(cmd)
	completeWords(cmd)
	settings.Install(cmd, settings.Options{
		Prefix: envPrefix, File: true, Replaced: ofKuma,
		Unknown: func(cmd *cobra.Command, variables []string) {
			if _, guarded := worker.Guarded(); !guarded { // the guard has already logged the error
				newLogger(slog.LevelInfo, formatOf(cmd)).Warn("ignoring unknown environment variables", "variables", variables)
			}
		},
	})
	return cmd
}

// formatOf returns the value of a command's --log-format, or auto if the command lacks the flag.
func formatOf(cmd *cobra.Command) logging.Format {
	if f := cmd.Flags().Lookup("log-format"); f != nil {
		return logging.Format(f.Value.String())
	}
	return logging.Auto
}

// newLogger returns a logger that writes messages of this level and above to stderr.
func newLogger(level slog.Level, f logging.Format) *slog.Logger {
	return logging.New(os.Stderr, level, f)
}

// agentFlags maps the fields of dpagent.Options, which errors name, to flags.
var agentFlags = map[string]string{ //nolint:gosec // names of flags are not secret
	"ControlPlane": "--cp-address", "CAFile": "--ca-cert-file", "Name": "--name", "Mesh": "--mesh",
	"TokenFile": "--dataplane-token-file", "AdminAddress": "--admin-addr", "DrainTime": "--drain-time",
	"LBHealthPort": "--lb-health-port", "LBDrainTime": "--lb-drain-time",
	"MetricsAddress": "--metrics-addr", "MetricsInclude": "--metrics-include",
	"EnvoyPath": "--envoy-path", "WorkDir": "--work-dir", "Concurrency": "--concurrency",
	"Probes.Port": "--virtual-probes-port", "Port": "--virtual-probes-port",
}

func newRunCommand(becomeGuard guarding) *cobra.Command {
	o := dpagent.DefaultOptions()
	var config string // the file is read before the command runs
	var format logging.Format
	cmd := &cobra.Command{
		Use:   "run --cp-address=HOST:PORT --ca-cert-file=FILE --name=NAME --dataplane-token-file=FILE",
		Short: "Join the mesh and run Envoy",
		Long: `Join the mesh, run Envoy with the identity that the control plane issues, and renew the identity before it expires.

SIGTERM or SIGINT begins a drain: the control plane removes this proxy from its services, the agent waits at most
--drain-time for open requests and connections to end, and then stops Envoy. With --lb-health-port, the agent first
fails the checks of load balancers and keeps serving for --lb-drain-time. A second signal stops everything at once.
SIGHUP, which a closed terminal sends, also begins a drain, but never stops everything at once; under nohup it is
ignored.`,
		Example: `  # an Envoy for the Dataplane web-1, with a token from "sondectl generate dataplane-token"
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
			guard := func() error { return becomeGuard(format) }
			return mesh.RenameFields(run(cmd.Context(), o, newLogger(o.Level, format), guard), agentFlags)
		},
	}
	f := cmd.Flags()
	f.StringVar(&config, "config", "", "YAML `file` with these flags as keys (cpAddress for cp-address). A flag takes precedence over its variable (SONDE_DP_CP_ADDRESS), which takes precedence over its key")
	f.Var(&reach.AddressFlag{Service: reach.Agents, To: &o.ControlPlane}, "cp-address",
		"`host:port` of the control plane (required)")
	f.StringVar(&o.CAFile, "ca-cert-file", "", "`file` with the control plane's serving CA, PEM (required)")
	f.StringVar(&o.Name, "name", "", "`name` of this proxy's Dataplane (required)")
	f.StringVar(&o.Mesh, "mesh", o.Mesh, "`name` of its mesh")
	f.StringVar(&o.TokenFile, "dataplane-token-file", "", "`file` with the token for joining, read at each attempt that needs it (required)")
	f.StringVar(&o.AdminAddress, "admin-addr", o.AdminAddress, "`host:port` for /metrics, /livez and /readyz; port 0 means a free one")
	f.DurationVar(&o.DrainTime, "drain-time", o.DrainTime, "maximum wait for open requests and connections in a drain")
	f.BoolVar(&o.LastToEnd, "last-to-end", false, "drain without waiting for clients: set this if the applications stop before this program gets its signal")
	f.IntVar(&o.LBHealthPort, "lb-health-port", 0, "`port` on all addresses for load balancer checks, /healthz and /livez; 0: none")
	f.DurationVar(&o.LBDrainTime, "lb-drain-time", o.LBDrainTime, "how long to keep serving, with failing load balancer checks, before the drain begins; not with --last-to-end")
	f.StringVar(&o.MetricsAddress, "metrics-addr", "", "`host:port` for Prometheus, which serves only /metrics, with the metrics of this program and of Envoy; no host means all addresses, port 0 a free one (default: none)")
	f.StringSliceVar(&o.MetricsInclude, "metrics-include", nil, "name `prefixes` of Envoy's metrics at --metrics-addr (default: those in docs/metrics.md)")
	f.StringVar(&o.EnvoyPath, "envoy-path", "", "Envoy `binary` (default: envoy in the directory of this program, else on PATH)")
	f.StringVar(&o.WorkDir, "work-dir", "", "`directory` for Envoy's bootstrap, secrets and sockets; after a restart, the agent rejoins with the certificate in it (default: a new one under $TMPDIR, removed at the end)")
	f.IntVar(&o.Concurrency, "concurrency", o.Concurrency, fmt.Sprintf("number of Envoy's worker threads; 0: the CPU limit, rounded up, or %d without a limit", mesh.DefaultConcurrency))
	f.IntVar(&o.Probes.Port, "virtual-probes-port", mesh.PortVirtualProbes, "`port` on $INSTANCE_IP for the probes of $KUMA_DATAPLANE_PROBES; 0, or no probes: none")
	f.Var((*probesModeFlag)(&o.Probes.Mode), "virtual-probes-mode", "ports on which the agent answers probes: unified, all on one port, or per-port, gRPC probes on their own ports")
	f.Var((*livenessHoldFlag)(&o.Probes.Hold), "liveness-hold", "answer to the kubelet if a liveness failure is held back or the probe cannot be checked: errored, which the kubelet discards, or warning, a redirect that it does not follow, for kubelets that count errored probes as failures; the control plane's setting takes precedence")
	settings.LevelVar(f, &o.Level, "`LEVEL`: debug, info, warn or error; Envoy's level is info at debug, and warning at info")
	settings.LogFormatVar(f, &format)
	return cmd
}

// answersProbes reports whether an agent with these options will answer probes. The error joins all invalid options.
func answersProbes(o dpagent.Options) (bool, error) {
	needed, err := o.Probes.Needed()
	return needed, errors.Join(o.Validate(), err)
}

// run runs the agent, in the worker of a guard if it answers probes. The first signal begins a drain, the second one
// stops the agent.
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
			// SIGHUP is never a second signal: when a terminal closes, both shell and kernel may send it
			case s != syscall.SIGHUP:
				cancel()
			}
		}
	}
}
