// Package watchdog watches the nodes of clusters. While the path to silent nodes is broken, it scales down the
// components that would act on them. The leading replica reconciles WatchedClusters and watches each in its own
// goroutine (package cluster).
package watchdog

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Default names of the watchdog's own objects and default addresses of its health endpoints.
const (
	// DefaultName is the Deployment, DefaultNamespace the chart's namespace. LeaseName is the election Lease, which has
	// the epoch; oldSecretName is the Secret with the epoch in releases up to 0.1.0.
	DefaultName          = "sonde-watchdog"
	DefaultNamespace     = "sonde-system"
	LeaseName            = "sonde-watchdog"
	oldSecretName        = "watchdog-leader"
	DefaultHealthAddress = "*:5680"
	// DefaultFileCluster is the name of WatchedClusters created from a file.
	DefaultFileCluster = "config"
)

// Options of a Watchdog.
type Options struct {
	// Kubeconfig is a kubeconfig file for the API server with the WatchedClusters. Default: the in-cluster
	// configuration.
	Kubeconfig string
	// Namespace of the watchdog, Name of its Deployment, Replica is its pod name. Required.
	Namespace, Name, Replica string
	// File is a configuration file of the Dependency Watchdog's prober. It becomes a WatchedCluster named FileCluster
	// in the watchdog's namespace, or one per shoot with Gardener.
	File, FileCluster string
	// Gardener watches Gardener's Clusters: then File applies to all shoots, and each shoot gets a WatchedCluster in its
	// own namespace.
	Gardener bool
	// Local applies File to the local cluster, and ignores its Secret.
	Local bool
	// DryRun scales nothing: planned actions are logged, counted and reported as events.
	DryRun bool
	// HealthAddress of /livez, /readyz and /metrics, as HOST:PORT; * means all addresses, and port 0 a free one.
	// Required.
	HealthAddress string
	// OpenFiles limits the file descriptors of the process. Default: no limit.
	OpenFiles int
	// Version of the program, for the API server's log.
	Version string
	// Logger. Required.
	Logger *slog.Logger
	// Listen opens the listener of the health endpoints. Default: net.ListenConfig.Listen.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
}

// Validate returns all errors, joined.
func (o *Options) Validate() error {
	var errs []error
	for _, name := range []struct{ field, value string }{{"Namespace", o.Namespace}, {"Name", o.Name},
		{"Replica", o.Replica}} {
		if problems := validation.IsDNS1123Subdomain(name.value); len(problems) > 0 {
			errs = append(errs, &mesh.FieldError{Field: name.field, Value: name.value,
				Allowed: "must be the name of an object: " + problems[0]})
		}
	}
	if _, err := listenAddress(o.HealthAddress); err != nil {
		errs = append(errs, err)
	}
	if o.Gardener && o.File == "" {
		errs = append(errs, &mesh.FieldError{
			Field: "Gardener", Value: "true", Allowed: "must be given with a file, which names the controllers to scale for each shoot"})
	}
	if o.Gardener && o.Local {
		errs = append(errs, &mesh.FieldError{
			Field: "Local", Value: "true", Allowed: "must not be given for shoots, which are reached by their Secrets"})
	}
	if o.File == "" && o.Local {
		errs = append(errs, &mesh.FieldError{
			Field: "Local", Value: "true", Allowed: "must be given with a file; in a WatchedCluster, set spec.local"})
	}
	if problems := validation.IsDNS1123Subdomain(o.FileCluster); o.File != "" && len(problems) > 0 {
		errs = append(errs, &mesh.FieldError{Field: "FileCluster", Value: o.FileCluster,
			Allowed: "must be the name of an object: " + problems[0]})
	}
	return errors.Join(errs...)
}

// listenAddress returns an address for net.Listen, without a host for all addresses.
func listenAddress(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err == nil && host != "*" && host != "" {
		_, err = netip.ParseAddr(host)
	}
	if err != nil {
		return "", &mesh.FieldError{Field: "HealthAddress", Value: address,
			Allowed: "must be HOST:PORT, with an IP address or * as HOST"}
	}
	return strings.TrimPrefix(address, "*"), nil
}
