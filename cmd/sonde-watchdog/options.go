package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/watchdog"
)

// options are the flags. Each is also a variable.
type options struct {
	watchdog.Options
	logLevel slog.Level
}

// envPrefix is what variables begin with.
const envPrefix = "SONDE_WATCHDOG_"

// flagOf has the flag of each field of watchdog.Options that an error may name.
var flagOf = map[string]string{
	"Kubeconfig": "--kubeconfig", "Namespace": "--namespace", "Name": "--name", "Replica": "--replica", "File": "--config",
	"FileCluster": "--config-cluster", "Gardener": "--gardener", "Local": "--config-local", "HealthAddress": "--health-addr",
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.File, "config", "", "YAML `FILE` of a prober of Gardener's Dependency Watchdog. A WatchedCluster of --namespace is made of it, or with --gardener one of each shoot")
	flags.StringVar(&o.FileCluster, "config-cluster", watchdog.DefaultFileCluster, "`NAME` of that WatchedCluster")
	flags.BoolVar(&o.Local, "config-local", false, "the file is about the cluster that the watchdog is in, whatever Secret it names")
	flags.BoolVar(&o.Gardener, "gardener", false, "follow Gardener's objects Cluster of the API server: a WatchedCluster of --config is made in the namespace of each shoot")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "`FILE` with the address of the API server that has the WatchedClusters; without it the watchdog is a pod")
	flags.StringVar(&o.Namespace, "namespace", watchdog.DefaultNamespace, "`NAMESPACE` of the watchdog, for its Lease")
	flags.StringVar(&o.Name, "name", watchdog.DefaultName, "`NAME` of the watchdog's Deployment, which it must not scale")
	flags.StringVar(&o.Replica, "replica", "", "`NAME` of this replica; default the name of the host, which is that of its pod")
	flags.BoolVar(&o.DryRun, "dry-run", false, "scale nothing: what would be scaled is logged, counted, and told by events")
	flags.StringVar(&o.HealthAddress, "health-addr", watchdog.DefaultHealthAddress, "`HOST:PORT` for /livez, /readyz and /metrics, plain HTTP; * means all addresses, and port 0 a free one")
	settings.LevelVar(flags, &o.logLevel, "")
}

// complete fills in what is not given, and returns all violations, joined. Each names its flag.
func (o *options) complete(flags *pflag.FlagSet) error {
	if o.Replica == "" && !flags.Changed("replica") {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("find the name of the host, for --replica: %w", err)
		}
		o.Replica = name
	}
	errs := []error{mesh.RenameFields(o.Validate(), flagOf)}
	if flags.Changed("config") && o.File == "" {
		errs = append(errs, &mesh.FieldError{Field: "--config", Allowed: "must not be empty"})
	}
	return errors.Join(errs...)
}
