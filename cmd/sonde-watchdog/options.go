package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/logging"
	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/watchdog"
)

// options holds the values of the flags. An environment variable can set each flag, too.
type options struct {
	watchdog.Options
	logLevel  slog.Level
	logFormat logging.Format
}

// envPrefix begins the names of the environment variables that set flags.
const envPrefix = "SONDE_WATCHDOG_"

// flagOf maps the fields of watchdog.Options, which errors name, to flags.
var flagOf = map[string]string{
	"Kubeconfig": "--kubeconfig", "Namespace": "--namespace", "Name": "--name", "Replica": "--replica", "File": "--config",
	"FileCluster": "--config-cluster", "Gardener": "--gardener",
	"Local": "--config-local", "HealthAddress": "--health-addr",
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.File, "config", "", "YAML `FILE` with the prober configuration of Gardener's Dependency Watchdog. The watchdog creates a WatchedCluster from it in --namespace, or with --gardener one for each shoot")
	flags.StringVar(&o.FileCluster, "config-cluster", watchdog.DefaultFileCluster, "`NAME` of the WatchedCluster that the watchdog creates from --config")
	flags.BoolVar(&o.Local, "config-local", false, "apply --config to the watchdog's own cluster, and ignore the Secret that it names")
	flags.BoolVar(&o.Gardener, "gardener", false, "watch Gardener's Cluster objects, and create a WatchedCluster from --config in the namespace of each shoot")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig `FILE` for the API server with the WatchedClusters; without it the watchdog uses the in-cluster configuration")
	flags.StringVar(&o.Namespace, "namespace", watchdog.DefaultNamespace, "`NAMESPACE` of the watchdog, for its Lease")
	flags.StringVar(&o.Name, "name", watchdog.DefaultName, "`NAME` of the watchdog's Deployment, which it must not scale")
	flags.StringVar(&o.Replica, "replica", "", "`NAME` of this replica; default the host name, which is the pod's name")
	flags.BoolVar(&o.DryRun, "dry-run", false, "scale nothing: only log, count and report planned actions as events")
	flags.StringVar(&o.HealthAddress, "health-addr", watchdog.DefaultHealthAddress, "`HOST:PORT` for /livez, /readyz and /metrics, plain HTTP; * means all addresses, and port 0 a free one")
	settings.LevelVar(flags, &o.logLevel, "")
	settings.LogFormatVar(flags, &o.logFormat)
}

// complete sets defaults, and returns all invalid values, joined. Each error names the flag.
func (o *options) complete(flags *pflag.FlagSet) error {
	if o.Replica == "" && !flags.Changed("replica") {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("get host name for --replica: %w", err)
		}
		o.Replica = name
	}
	errs := []error{mesh.RenameFields(o.Validate(), flagOf)}
	if flags.Changed("config") && o.File == "" {
		errs = append(errs, &mesh.FieldError{Field: "--config", Allowed: "must not be empty"})
	}
	return errors.Join(errs...)
}
