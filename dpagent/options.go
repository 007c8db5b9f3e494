package dpagent

import (
	"errors"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

// Options of an agent.
type Options struct {
	// ControlPlane is the address of the control plane, host:port. Required.
	ControlPlane string
	// CAFile holds the PEM certificates of the control plane's serving CA. Required.
	CAFile string
	// Name of the Dataplane. Required.
	Name string
	// Mesh of the Dataplane. Default "default".
	Mesh string
	// TokenFile holds the token to join with. It is read at each attempt that the certificate in WorkDir does not do for.
	// Required.
	TokenFile string
	// AdminAddress serves /metrics, /livez and /readyz. Default 127.0.0.1:9902; port 0 takes a free one.
	AdminAddress string
	// DrainTime is how long a drain may wait for open requests and connections, 1s to 1h. Default 25s.
	DrainTime time.Duration
	// LastToEnd says that all applications have ended before the agent is told to, as the kubelet does with native sidecars: a
	// drain then waits for no more clients, since nothing could serve them.
	LastToEnd bool
	// EnvoyPath is the Envoy binary. Default: envoy beside this program, else on PATH.
	EnvoyPath string
	// WorkDir holds Envoy's bootstrap, secrets and sockets. While the certificate in it is valid, the agent joins with that.
	// Default: a new directory under $TMPDIR, removed at the end.
	WorkDir string
	// Concurrency is the number of Envoy's worker threads, 1 to 1024. Default 2.
	Concurrency int
	// Level of the agent's log. Envoy's own log level is info if this is debug, error if it is error, else warning.
	// Default info.
	Level slog.Level
	// Probes of the pod. With port 0, or with an empty table, no probes are answered.
	Probes probe.Environment
	// Version of the program, to tell the control plane.
	Version string
}

// Defaults that the flags show.
const (
	DefaultAdminAddress = "127.0.0.1:9902"
	DefaultDrainTime    = mesh.DefaultDrainTime
	DefaultConcurrency  = mesh.DefaultConcurrency
)

// SetDefaults sets the default of each option that is not set.
func (o *Options) SetDefaults() {
	if o.Mesh == "" {
		o.Mesh = mesh.DefaultMesh
	}
	if o.AdminAddress == "" {
		o.AdminAddress = DefaultAdminAddress
	}
	if o.DrainTime == 0 {
		o.DrainTime = DefaultDrainTime
	}
	if o.Concurrency == 0 {
		o.Concurrency = DefaultConcurrency
	}
}

// Validate returns all violations, joined. Each is a *mesh.FieldError that names a field of Options.
func (o *Options) Validate() error {
	var errs []error
	refuse := func(field, value, allowed string) {
		errs = append(errs, &mesh.FieldError{Field: field, Value: value, Allowed: allowed})
	}
	for _, required := range []struct{ field, value string }{
		{"ControlPlane", o.ControlPlane}, {"CAFile", o.CAFile}, {"Name", o.Name}, {"TokenFile", o.TokenFile},
	} {
		if required.value == "" {
			refuse(required.field, "", "is required")
		}
	}
	if o.ControlPlane != "" && !isAddress(o.ControlPlane, 1) {
		refuse("ControlPlane", o.ControlPlane, "must be host:port, with a port from 1 to 65535")
	}
	if !isAddress(o.AdminAddress, 0) {
		refuse("AdminAddress", o.AdminAddress, "must be host:port, with a port from 0 to 65535")
	}
	if strings.Contains(o.Name, "/") {
		refuse("Name", o.Name, "must not contain a slash")
	}
	if strings.Contains(o.Mesh, "/") {
		refuse("Mesh", o.Mesh, "must not contain a slash")
	}
	if o.DrainTime < mesh.MinDrainTime || o.DrainTime > mesh.MaxDrainTime {
		refuse("DrainTime", o.DrainTime.String(), mesh.AllowedDrainTime)
	}
	if o.Concurrency < 1 || o.Concurrency > 1024 {
		refuse("Concurrency", strconv.Itoa(o.Concurrency), "must be a number from 1 to 1024")
	}
	if o.Probes.Port < 0 || o.Probes.Port > 65535 {
		refuse("Probes.Port", strconv.Itoa(o.Probes.Port), mesh.AllowedPort+", or 0 for none")
	}
	return errors.Join(errs...)
}

// isAddress reports whether an address is host:port. With a lowest port of 0 it is one to listen on, which needs no host.
func isAddress(address string, lowest int) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" && lowest > 0 || strings.ContainsAny(host, "/ ") {
		return false
	}
	number, err := strconv.Atoi(port)
	return err == nil && number >= lowest && number <= 65535
}
