// Command sonde-watchdog scales down controllers that act on silent nodes, while the path to the nodes is broken.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/buildinfo"
	"github.com/sonde-mesh/sonde/internal/descriptors"
	"github.com/sonde-mesh/sonde/internal/logging"
	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/internal/shutdown"
	"github.com/sonde-mesh/sonde/watchdog"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), shutdown.Signals()...)
	code := settings.Main(ctx, newCommand(&options{}))
	stop()
	os.Exit(code)
}

// newCommand returns the root command, which parses its flags into o.
func newCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sonde-watchdog",
		Short: "Scales controllers down while the path to the nodes of their cluster is broken",
		Long: `Scales controllers down while the path to the nodes of their cluster is broken, and up again afterwards.

WatchedCluster objects define which clusters it watches, and which controllers it scales.

Exit codes:
  0  stopped by a signal
  1  failed: the reason is on stderr
  2  wrong usage: a command, argument, flag or variable, or the file that --config names`,
		Example: `  # the clusters of WatchedClusters, in a pod
  sonde-watchdog --namespace=sonde-system

  # in addition the shoots of one of Gardener's seeds
  sonde-watchdog --namespace=garden --gardener --config=/etc/dwd/dep-config.yaml

  # in addition the cluster of a file of Gardener's Dependency Watchdog, as a dry run
  sonde-watchdog --namespace=shoot--a--b --config=/etc/dwd/dep-config.yaml --dry-run`,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(cmd.Flags()); err != nil {
				return err
			}
			o.Logger, o.Version = newLogger(o.logLevel, o.logFormat), buildinfo.Of(cmd.Name()).Version
			klog.SetSlogLogger(o.Logger) // log of the Kubernetes libraries
			var err error
			if o.OpenFiles, err = descriptors.Limit(); err != nil {
				return err
			}
			w, err := watchdog.New(cmd.Context(), o.Options)
			if err != nil {
				return mesh.RenameFields(err, flagOf)
			}
			return w.Run(cmd.Context())
		},
	}
	o.addFlags(cmd.Flags())
	buildinfo.Add(cmd)
	for flag, words := range map[string][]string{
		"log-level": {"debug", "info", "warn", "error"}, "log-format": {"text", "json"},
	} {
		settings.Must(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
	}
	settings.Install(cmd, settings.Options{Prefix: envPrefix, Unknown: func(_ *cobra.Command, variables []string) {
		newLogger(o.logLevel, o.logFormat).Warn("ignoring unknown environment variables", "variables", variables)
	}})
	return cmd
}

// newLogger returns a logger that writes messages of this level and above to stderr.
func newLogger(level slog.Level, f logging.Format) *slog.Logger {
	return logging.New(os.Stderr, level, f)
}
