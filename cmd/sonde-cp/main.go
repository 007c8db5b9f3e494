// Command sonde-cp is the control plane of Sonde.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/shutdown"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), shutdown.Signals()...)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "sonde-cp:", err)
		stop()
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "sonde-cp --store=dir:PATH",
		Short: "The control plane of Sonde, a mesh for Envoy in which every health answer is true",
		Example: `  # a mesh from a directory of YAML files
  sonde-cp --store=dir:/etc/sonde/mesh --state-dir=/var/lib/sonde

  # the same, with the flags in a file
  sonde-cp --config=/etc/sonde/control-plane.yaml`,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.config != "" {
				if err := readConfig(o.config, cmd.Flags()); err != nil {
					return err
				}
			}
			if err := o.validate(cmd.Flags()); err != nil {
				return err
			}
			o.Logger, o.Version = newLogger(o.logLevel), version()
			klog.SetSlogLogger(o.Logger) // what Kubernetes' libraries say
			return mesh.RenameFields(run(cmd.Context(), o.Options), flagOf)
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}

func run(ctx context.Context, o controlplane.Options) error {
	cp, err := controlplane.New(o)
	if err != nil {
		return err
	}
	return cp.Run(ctx)
}

// newLogger returns a logger that writes JSON to stderr, from that level on. The level has been checked.
func newLogger(level string) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		l = slog.LevelInfo
	}
	return slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: l}))
}

// version returns the version of this program, as recorded by the Go build.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
