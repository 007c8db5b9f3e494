package cni

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Options of a Daemon. All are required, except Kubeconfig and Logger.
type Options struct {
	// Node is the name of the node that the daemon runs on.
	Node string
	// Namespace and DaemonSet name the daemon's own DaemonSet: if it has been deleted, the daemon uninstalls the plugin
	// when it stops.
	Namespace, DaemonSet string
	// Kubeconfig is a file. Default: the in-cluster configuration.
	Kubeconfig string
	// Socket is the path at which the daemon answers the plugin, the same on the node and in the daemon's container.
	Socket string
	// ConfigDir and PluginDir are the directories from which container runtimes read CNI configurations and run plugins.
	ConfigDir, PluginDir string
	// Plugin is the file of the plugin, which the daemon copies to the node.
	Plugin string
	// CacheDir is the directory in which the container runtime's CNI library records sandboxes.
	CacheDir string
	// HealthAddress is the host:port for /livez, /readyz and /metrics.
	HealthAddress string
	Version       string
	// Logger is the log. Default: none.
	Logger *slog.Logger
}

// Defaults of flags: the paths of Linux distributions.
const (
	DefaultSocket    = "/run/sonde-cni/daemon.sock"
	DefaultConfigDir = "/etc/cni/net.d"
	DefaultPluginDir = "/opt/cni/bin"
	DefaultPlugin    = "/usr/bin/sonde-cni-plugin"
	DefaultCacheDir  = "/var/lib/cni"
	DefaultName      = "sonde-cni"
	DefaultNamespace = "sonde-system"
	DefaultHealth    = "*:5680"
)

// healthAddress returns the address to listen on; * means all.
func (o *Options) healthAddress() string { return strings.TrimPrefix(o.HealthAddress, "*") }

// Validate returns a *mesh.FieldError for each invalid value, joined.
func (o *Options) Validate() error {
	var errs []error
	for _, f := range []struct{ field, value string }{{"Node", o.Node}, {"Namespace", o.Namespace},
		{"DaemonSet", o.DaemonSet}} {
		if f.value == "" {
			errs = append(errs, &mesh.FieldError{Field: f.field, Allowed: "must not be empty"})
		}
	}
	for _, f := range []struct{ field, value string }{
		{"Socket", o.Socket}, {"ConfigDir", o.ConfigDir}, {"PluginDir", o.PluginDir}, {"Plugin", o.Plugin},
		{"CacheDir", o.CacheDir},
	} {
		if !filepath.IsAbs(f.value) {
			errs = append(errs, &mesh.FieldError{Field: f.field, Value: f.value, Allowed: "must be an absolute path"})
		}
	}
	return errors.Join(errs...)
}
