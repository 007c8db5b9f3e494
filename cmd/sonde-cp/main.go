// Command sonde-cp is the control plane of Sonde.
package main

import (
	"context"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"runtime/debug"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/internal/buildinfo"
	"github.com/sonde-mesh/sonde/internal/cgroup"
	"github.com/sonde-mesh/sonde/internal/descriptors"
	"github.com/sonde-mesh/sonde/internal/logging"
	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/internal/shutdown"
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
		Use:   "sonde-cp --store=dir:PATH",
		Short: "The control plane of Sonde, a mesh for Envoy in which every health answer is true",
		Long: `The control plane of Sonde, a mesh for Envoy in which every health answer is true.

Exit codes:
  0  stopped by a signal
  1  failed: the reason is on stderr
  2  wrong usage: a command, argument, flag or variable, or the file that --config names`,
		Example: `  # a mesh from a directory of YAML files
  sonde-cp --store=dir:/etc/sonde/mesh --state-dir=/var/lib/sonde

  # the same, with the flags in a file, or as variables
  sonde-cp --config=/etc/sonde/control-plane.yaml
  SONDE_CP_STORE=dir:/etc/sonde/mesh sonde-cp`,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(cmd.Flags()); err != nil {
				return err
			}
			o.Logger, o.Version = newLogger(o.logLevel, o.logFormat), buildinfo.Of(cmd.Name()).Version
			klog.SetSlogLogger(o.Logger) // log of the Kubernetes libraries
			o.Memory = limitMemory(o.Logger)
			var err error
			if o.OpenFiles, err = descriptors.Limit(); err != nil {
				return err
			}
			return mesh.RenameFields(run(cmd.Context(), o, cmd.Flags()), flagOf)
		},
	}
	o.addFlags(cmd.Flags())
	cmd.AddCommand(newApplyCRDs())
	buildinfo.Add(cmd)
	completeWords(cmd)
	settings.Install(cmd, settings.Options{
		Prefix: envPrefix, File: true, Keys: nested, Replaced: ofKuma,
		Unknown: func(_ *cobra.Command, variables []string) {
			newLogger(o.logLevel, o.logFormat).Warn("ignoring unknown environment variables", "variables", variables)
		},
	})
	return cmd
}

// limitMemory makes the garbage collector run before the process reaches its memory limit, unless GOMEMLIMIT is set. It
// returns the memory limit or GOMEMLIMIT in bytes, whichever is less; 0 if both are unknown.
func limitMemory(log *slog.Logger) uint64 {
	memory, err := cgroup.Memory()
	if err != nil {
		log.Warn("failed to find the memory limit", "err", err)
	}
	if os.Getenv("GOMEMLIMIT") != "" {
		if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 && (err != nil || uint64(limit) < memory) {
			memory = uint64(limit)
		}
	} else if err == nil {
		debug.SetMemoryLimit(int64(memory / 10 * 9))
	}
	return memory
}

// run runs a control plane, and reloads its configuration file, if any, when it changes.
func run(ctx context.Context, o *options, flags *pflag.FlagSet) error {
	cp, err := controlplane.New(o.Options)
	if err != nil {
		return err
	}
	group, running := errgroup.WithContext(ctx)
	running, stop := context.WithCancel(running)
	defer stop()
	if o.config != "" {
		file := &configFile{path: o.config, flags: flags, log: o.Logger, options: o}
		group.Go(func() error { return file.follow(running, cp.Reconfigure) })
	}
	group.Go(func() error {
		defer stop()
		return cp.Run(running)
	})
	return group.Wait()
}

// newLogger returns a logger that writes messages of this level and above to stderr.
func newLogger(level slog.Level, f logging.Format) *slog.Logger {
	return logging.New(os.Stderr, level, f)
}
