// Command sonde-watchdog has controllers be scaled down that act on nodes which fall silent, while it is the path to the nodes that is broken.
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
	"github.com/sonde-mesh/sonde/internal/jsonlog"
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

// newCommand returns the program. Its flags are set in o.
func newCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sonde-watchdog",
		Short: "Scales controllers down while the path to the nodes of their cluster is broken",
		Long: `Scales controllers down while the path to the nodes of their cluster is broken, and up again once it is not.

Which clusters it watches, and what it scales, is in objects of kind WatchedCluster.

Exit codes:
  0  ended, as it was asked to
  1  failed: the reason is on stderr
  2  wrong usage: a command, argument, flag or variable, or the file that --config names`,
		Example: `  # what WatchedClusters say, in a pod
  sonde-watchdog --namespace=sonde-system

  # beside them the shoots of a seed of Gardener's
  sonde-watchdog --namespace=garden --gardener --config=/etc/dwd/dep-config.yaml

  # beside them the cluster of a file of Gardener's Dependency Watchdog, as a dry run
  sonde-watchdog --namespace=shoot--a--b --config=/etc/dwd/dep-config.yaml --dry-run`,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(cmd.Flags()); err != nil {
				return err
			}
			o.Logger, o.Version = newLogger(o.logLevel), buildinfo.Of(cmd.Name()).Version
			klog.SetSlogLogger(o.Logger) // what Kubernetes' libraries say
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
	settings.Must(cmd.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp)))
	settings.Install(cmd, settings.Options{Prefix: envPrefix, Unknown: func(_ *cobra.Command, variables []string) {
		newLogger(o.logLevel).Warn("unknown variables of the environment are ignored", "variables", variables)
	}})
	return cmd
}

// newLogger returns a logger that writes JSON to stderr, from that level on.
func newLogger(level slog.Level) *slog.Logger { return jsonlog.New(os.Stderr, level) }
