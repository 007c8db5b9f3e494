package dpagent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/envoy"
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
	// Mesh of the Dataplane. Required.
	Mesh string
	// TokenFile holds the token to join with. The agent reads it whenever WorkDir has no usable certificate. Required.
	TokenFile string
	// AdminAddress serves /metrics, /livez and /readyz; port 0 takes a free one. Required.
	AdminAddress string
	// DrainTime is how long a drain may wait for open requests and connections, 1s to 1h.
	DrainTime time.Duration
	// LastToEnd means that all applications exit before the agent has to exit, as with native sidecars. A drain then does
	// not wait for clients, since no application could serve them.
	LastToEnd bool
	// EnvoyPath is the Envoy binary. Default: envoy beside this program, else on PATH.
	EnvoyPath string
	// WorkDir holds Envoy's bootstrap, secrets and sockets. The agent joins with the certificate in WorkDir while that is
	// valid. Default: a new directory under $TMPDIR, removed at the end. Required with Probes.Mode mesh.ProbesPerPort.
	WorkDir string
	// Concurrency is the number of Envoy's worker threads, 1 to 1024. Default: the CPU limit in processors, rounded up, or
	// mesh.DefaultConcurrency without a limit.
	Concurrency int
	// Level of the agent's log. Envoy's log level is info if Level is debug, error if Level is error, and warning
	// otherwise. Default info.
	Level slog.Level
	// LBHealthPort is the port that answers load balancers on all addresses, see package lb. Default 0: disabled.
	LBHealthPort int
	// LBDrainTime is how long a proxy that exits keeps serving after load balancers see it draining, 0s to 1h. It has no
	// effect without an LBHealthPort, or with LastToEnd.
	LBDrainTime time.Duration
	// MetricsAddress serves Prometheus the metrics of the agent and of Envoy, and nothing else; port 0 takes a free port.
	// Default: disabled.
	MetricsAddress string
	// MetricsInclude are name prefixes: MetricsAddress serves only Envoy's metrics with one of them. Default
	// mesh.DefaultMetricFamilies.
	MetricsInclude []string
	// Probes of the pod. With port 0, or with an empty table, the agent answers no probes.
	Probes probe.Environment
	// OpenFiles limits the file descriptors of the process, which its ports share. Default: no limit.
	OpenFiles int
	// Version of the program, reported to the control plane.
	Version string
	// Listen opens AdminAddress, LBHealthPort and the agent's Unix sockets in WorkDir. Default: net.ListenConfig.Listen.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// Dial connects to the control plane by tcp, and to Envoy's sockets in WorkDir by unix. Default:
	// net.Dialer.DialContext, with TCP keepalive.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Launcher runs Envoy. Default: envoy.ProcessLauncher.
	Launcher envoy.Launcher
}

// DefaultAdminAddress is the default address for supervisors.
const DefaultAdminAddress = "127.0.0.1:9902"

// DefaultOptions returns the default options. The caller adds the required ones.
func DefaultOptions() Options {
	return Options{
		Mesh: mesh.DefaultMesh, AdminAddress: DefaultAdminAddress, DrainTime: mesh.DefaultDrainTime,
		LBDrainTime: mesh.DefaultLBDrainTime,
	}
}

func (o *Options) setDefaults() {
	if o.Listen == nil {
		o.Listen = new(net.ListenConfig).Listen
	}
	if o.Launcher == nil {
		o.Launcher = envoy.ProcessLauncher{}
	}
}

// dialControlPlane returns the function that dials the control plane, or nil for the default.
func (o *Options) dialControlPlane() func(ctx context.Context, address string) (net.Conn, error) {
	if o.Dial == nil {
		return nil
	}
	return func(ctx context.Context, address string) (net.Conn, error) { return o.Dial(ctx, "tcp", address) }
}

// Validate returns all violations, joined. Each is a *mesh.FieldError that names a field of Options.
func (o *Options) Validate() error {
	var errs []error
	refuse := func(field, value, allowed string) {
		errs = append(errs, &mesh.FieldError{Field: field, Value: value, Allowed: allowed})
	}
	for _, required := range []struct{ field, value string }{
		{"ControlPlane", o.ControlPlane}, {"CAFile", o.CAFile}, {"Name", o.Name}, {"Mesh", o.Mesh},
		{"TokenFile", o.TokenFile},
		{"AdminAddress", o.AdminAddress},
	} {
		if required.value == "" {
			refuse(required.field, "", "is required")
		}
	}
	if o.ControlPlane != "" && !isAddress(o.ControlPlane, 1) {
		refuse("ControlPlane", o.ControlPlane, "must be host:port, with a port from 1 to 65535")
	}
	if o.AdminAddress != "" && !isAddress(o.AdminAddress, 0) {
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
	if o.Concurrency < 0 || o.Concurrency > 1024 {
		refuse("Concurrency", strconv.Itoa(o.Concurrency),
			"must be a number from 1 to 1024, or 0 to follow the CPU limit")
	}
	return errors.Join(append(errs, o.validateProbes(), o.validateLB(), o.validateMetrics())...)
}

func (o *Options) validateLB() error {
	var errs []error
	refuse := func(field, value, allowed string) {
		errs = append(errs, &mesh.FieldError{Field: field, Value: value, Allowed: allowed})
	}
	if o.LBDrainTime < 0 || o.LBDrainTime > mesh.MaxDrainTime {
		refuse("LBDrainTime", o.LBDrainTime.String(), mesh.AllowedLBDrainTime)
	}
	port := strconv.Itoa(o.LBHealthPort)
	if o.LBHealthPort < 0 || o.LBHealthPort > 65535 {
		refuse("LBHealthPort", port, mesh.AllowedPort+", or 0 for none")
	}
	if o.LBHealthPort <= 0 {
		return errors.Join(errs...)
	}
	if use := o.takenPort(o.LBHealthPort); use != "" {
		refuse("LBHealthPort", port, "must not be "+use)
	}
	return errors.Join(errs...)
}

// takenPort returns who already uses a port that is configured for load balancers or Prometheus, or "".
func (o *Options) takenPort(port int) string {
	if use := reservedPorts[port]; use != "" {
		return "the port of " + use
	}
	if admin, err := portOf(o.AdminAddress); err == nil && admin == port {
		return "the port for supervisors"
	}
	if answered, err := o.Probes.Needed(); err == nil && answered && o.Probes.Port == port {
		return "the virtual port, on which probes are answered"
	}
	return ""
}

// reservedPorts are Envoy's ports in a pod, with their purpose.
var reservedPorts = map[int]string{
	mesh.PortRedirectIn: "redirection", mesh.PortRedirectOut: "redirection", mesh.PortReadiness: "the sidecar's readiness",
}

func (o *Options) validateProbes() error {
	var errs []error
	if o.Probes.Mode == mesh.ProbesPerPort && o.WorkDir == "" {
		errs = append(errs, &mesh.FieldError{
			Field: "WorkDir", Allowed: "is required in the per-port mode of probes: Envoy must find the socket of the next agent, too",
		})
	}
	if o.Probes.Port < 0 || o.Probes.Port > 65535 {
		errs = append(errs, &mesh.FieldError{Field: "Probes.Port", Value: strconv.Itoa(o.Probes.Port),
			Allowed: mesh.AllowedPort + ", or 0 for none"})
	}
	return errors.Join(errs...)
}

// isAddress reports whether an address is host:port. If lowest is 0 it is a listening address, which needs no host.
func isAddress(address string, lowest int) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" && lowest > 0 || strings.ContainsAny(host, "/ ") {
		return false
	}
	number, err := strconv.Atoi(port)
	return err == nil && number >= lowest && number <= 65535
}
