// Command sonde-cp is the control plane of Sonde.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"

	"github.com/spf13/cobra"

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
	var o Options
	cmd := &cobra.Command{
		Use:   "sonde-cp --store=dir:PATH",
		Short: "The control plane of Sonde, a mesh for Envoy in which every health answer is true",
		Example: `  # a mesh from a folder of YAML files
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
			if err := o.Validate(); err != nil {
				return err
			}
			return Run(cmd.Context(), o, newLogger(o.LogLevel))
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}

// newLogger returns a logger that writes JSON to stderr, from that level on. Validate has checked the level.
func newLogger(level string) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		l = slog.LevelInfo
	}
	return slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: l}))
}
