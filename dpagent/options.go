package dpagent

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

// Options of an agent. The errors of Validate name the flags of sonde-dp run.
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
	DefaultConcurrency  = 2
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

// Validate returns all violations, joined.
func (o *Options) Validate() error {
	var errs []error
	for _, required := range []struct{ flag, value string }{
		{"cp-address", o.ControlPlane}, {"ca-cert-file", o.CAFile}, {"name", o.Name}, {"dataplane-token-file", o.TokenFile},
	} {
		if required.value == "" {
			errs = append(errs, fmt.Errorf("--%s: is required", required.flag))
		}
	}
	if o.ControlPlane != "" {
		errs = append(errs, checkAddress("cp-address", o.ControlPlane, 1))
	}
	errs = append(errs, checkAddress("admin-addr", o.AdminAddress, 0))
	if strings.Contains(o.Name, "/") || strings.Contains(o.Mesh, "/") {
		errs = append(errs, fmt.Errorf("--name, --mesh: %q, %q: must not contain a slash", o.Name, o.Mesh))
	}
	if o.DrainTime < time.Second || o.DrainTime > mesh.MaxDrainTime {
		errs = append(errs, fmt.Errorf("--drain-time: %s is not between 1s and 1h", o.DrainTime))
	}
	if o.Concurrency < 1 || o.Concurrency > 1024 {
		errs = append(errs, fmt.Errorf("--concurrency: %d is not between 1 and 1024", o.Concurrency))
	}
	if o.Probes.Port < 0 || o.Probes.Port > 65535 {
		errs = append(errs, fmt.Errorf("--virtual-probes-port: %d: must be a port from 1 to 65535, or 0 for none", o.Probes.Port))
	}
	return errors.Join(errs...)
}

func checkAddress(flag, address string, lowest int) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("--%s: %q: must be host:port: %w", flag, address, err)
	}
	if number, err := strconv.Atoi(port); err != nil || number < lowest || number > 65535 {
		return fmt.Errorf("--%s: %q: port must be a number from %d to 65535", flag, address, lowest)
	}
	if host == "" && lowest > 0 || strings.ContainsAny(host, "/ ") {
		return fmt.Errorf("--%s: %q: must be host:port", flag, address)
	}
	return nil
}
