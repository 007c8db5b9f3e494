// Package watchdog watches the nodes of clusters, and has what acts on nodes that fall silent be scaled down while it is the path to them that is
// broken. The replica that leads reconciles WatchedClusters: what each says is watched by a goroutine of its own (package cluster).
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

// Names of the watchdog's own objects, and the addresses of its health endpoints, by default.
const (
	// DefaultName is that of the Deployment, DefaultNamespace that of the chart. LeaseName is that of the Lease of the election, which has the epoch, and
	// oldSecretName that of the secret in which releases up to 0.1.0 kept it.
	DefaultName          = "sonde-watchdog"
	DefaultNamespace     = "sonde-system"
	LeaseName            = "sonde-watchdog"
	oldSecretName        = "watchdog-leader"
	DefaultHealthAddress = "*:5680"
	// DefaultFileCluster is the name of the WatchedCluster that is made of a file, or of those of shoots.
	DefaultFileCluster = "config"
)

// Options of a Watchdog.
type Options struct {
	// Kubeconfig is a file that says how to reach the API server with the WatchedClusters. Default: the watchdog is a pod.
	Kubeconfig string
	// Namespace of the watchdog, Name of its Deployment, and Replica that of its pod. Required.
	Namespace, Name, Replica string
	// File is one of the Dependency Watchdog's prober. A WatchedCluster of the watchdog's own namespace is made of it, with the name FileCluster; or
	// one of each shoot's.
	File, FileCluster string
	// Gardener has Gardener's Clusters be followed: the file is about the shoots, each of which gets a WatchedCluster in its own namespace.
	Gardener bool
	// Local says that the file is about the local cluster, whatever Secret it names.
	Local bool
	// DryRun has nothing be scaled: what would be is logged, counted, and told by events.
	DryRun bool
	// HealthAddress of /livez, /readyz and /metrics, as HOST:PORT; * means all addresses, and port 0 a free one. Required.
	HealthAddress string
	// OpenFiles is how many file descriptors the process may open. Default: no limit.
	OpenFiles int
	// Version of the program, for the API server's log.
	Version string
	// Logger. Required.
	Logger *slog.Logger
	// Listen opens the listener of the health endpoints. Default: net.ListenConfig.Listen.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
}

// Validate returns all violations, joined.
func (o *Options) Validate() error {
	var errs []error
	for _, name := range []struct{ field, value string }{{"Namespace", o.Namespace}, {"Name", o.Name}, {"Replica", o.Replica}} {
		if problems := validation.IsDNS1123Subdomain(name.value); len(problems) > 0 {
			errs = append(errs, &mesh.FieldError{Field: name.field, Value: name.value, Allowed: "must be the name of an object: " + problems[0]})
		}
	}
	if _, err := listenAddress(o.HealthAddress); err != nil {
		errs = append(errs, err)
	}
	if o.Gardener && o.File == "" {
		errs = append(errs, &mesh.FieldError{Field: "Gardener", Value: "true", Allowed: "must be given with a file: it says what is scaled of each shoot"})
	}
	if o.Gardener && o.Local {
		errs = append(errs, &mesh.FieldError{Field: "Local", Value: "true", Allowed: "must not be given for shoots: one is reached by its Secret"})
	}
	if o.File == "" && o.Local {
		errs = append(errs, &mesh.FieldError{Field: "Local", Value: "true", Allowed: "must be given with a file: a WatchedCluster has spec.local"})
	}
	if problems := validation.IsDNS1123Subdomain(o.FileCluster); o.File != "" && len(problems) > 0 {
		errs = append(errs, &mesh.FieldError{Field: "FileCluster", Value: o.FileCluster, Allowed: "must be the name of an object: " + problems[0]})
	}
	return errors.Join(errs...)
}

// listenAddress returns an address as net.Listen takes it: without a host for all.
func listenAddress(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err == nil && host != "*" && host != "" {
		_, err = netip.ParseAddr(host)
	}
	if err != nil {
		return "", &mesh.FieldError{Field: "HealthAddress", Value: address, Allowed: "must be HOST:PORT, with an IP address or * as HOST"}
	}
	return strings.TrimPrefix(address, "*"), nil
}
