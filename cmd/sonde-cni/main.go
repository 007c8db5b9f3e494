// Command sonde-cni is the daemon of the CNI plugin.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cni"
	"github.com/sonde-mesh/sonde/internal/buildinfo"
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

// options holds the values of the flags. An environment variable can set each flag, too.
type options struct {
	cni.Options
	logLevel  slog.Level
	logFormat logging.Format
}

// envPrefix begins the names of the environment variables that set flags.
const envPrefix = "SONDE_CNI_"

// flagOf maps the fields of cni.Options, which errors name, to flags.
var flagOf = map[string]string{
	"Node": "--node", "Namespace": "--namespace", "DaemonSet": "--daemonset", "Kubeconfig": "--kubeconfig",
	"Socket": "--socket", "ConfigDir": "--config-dir", "PluginDir": "--plugin-dir", "Plugin": "--plugin",
	"CacheDir": "--cache-dir", "HealthAddress": "--health-addr",
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Node, "node", "", "`NAME` of the node that the daemon runs on")
	flags.StringVar(&o.Namespace, "namespace", cni.DefaultNamespace, "`NAMESPACE` of the daemon's own DaemonSet")
	flags.StringVar(&o.DaemonSet, "daemonset", cni.DefaultName, "`NAME` of the daemon's own DaemonSet: after the DaemonSet is deleted, the daemon uninstalls the plugin when it stops")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig `FILE`; without it the daemon uses the in-cluster configuration")
	flags.StringVar(&o.Socket, "socket", cni.DefaultSocket, "`PATH` of the socket at which the daemon answers the plugin; the same path on the node and in the daemon's container")
	flags.StringVar(&o.ConfigDir, "config-dir", cni.DefaultConfigDir, "`DIRECTORY` on the node from which the container runtime reads its CNI configuration")
	flags.StringVar(&o.PluginDir, "plugin-dir", cni.DefaultPluginDir, "`DIRECTORY` on the node from which the container runtime runs CNI plugins")
	flags.StringVar(&o.Plugin, "plugin", cni.DefaultPlugin, "`FILE` with the plugin, which the daemon copies to the node")
	flags.StringVar(&o.CacheDir, "cache-dir", cni.DefaultCacheDir, "`DIRECTORY` on the node in which the container runtime keeps network namespaces")
	flags.StringVar(&o.HealthAddress, "health-addr", cni.DefaultHealth, "`HOST:PORT` for /livez, /readyz and /metrics, plain HTTP; * means all addresses")
	settings.LevelVar(flags, &o.logLevel, "")
	settings.LogFormatVar(flags, &o.logFormat)
}

// newCommand returns the root command, which parses its flags into o.
func newCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sonde-cni",
		Short: "Redirects the connections of a node's pods to their sidecars, as a CNI plugin",
		Long: `Redirects the connections of a node's pods to their sidecars, as a CNI plugin: pods need no init container with the capability NET_ADMIN.

The daemon copies the plugin to the node, adds it to the CNI configuration, and answers its requests. While the daemon
does not run, only the sidecars of new pods start; the daemon redirects these pods once it runs. The daemon needs the
capabilities NET_ADMIN and SYS_ADMIN.

Exit codes:
  0  stopped by a signal
  1  failed: the reason is on stderr
  2  wrong usage: a command, argument, flag or variable`,
		Example:       `  sonde-cni --node=node-1 --namespace=sonde-system`,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return &settings.UsageError{Err: mesh.RenameFields(err, flagOf)}
			}
			o.Logger, o.Version = newLogger(o.logLevel, o.logFormat), buildinfo.Of(cmd.Name()).Version
			klog.SetSlogLogger(o.Logger) // log of the Kubernetes libraries
			d, err := cni.New(cmd.Context(), o.Options)
			if err != nil {
				return mesh.RenameFields(err, flagOf)
			}
			return d.Run(cmd.Context())
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
