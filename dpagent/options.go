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
	// TokenFile holds the token to join with. It is read at each attempt that the certificate in WorkDir does not do for.
	// Required.
	TokenFile string
	// AdminAddress serves /metrics, /livez and /readyz; port 0 takes a free one. Required.
	AdminAddress string
	// DrainTime is how long a drain may wait for open requests and connections, 1s to 1h.
	DrainTime time.Duration
	// LastToEnd says that all applications have ended before the agent is told to, as the kubelet does with native sidecars: a
	// drain then waits for no more clients, since nothing could serve them.
	LastToEnd bool
	// EnvoyPath is the Envoy binary. Default: envoy beside this program, else on PATH.
	EnvoyPath string
	// WorkDir holds Envoy's bootstrap, secrets and sockets. While the certificate in it is valid, the agent joins with that.
	// Default: a new directory under $TMPDIR, removed at the end; with Probes.Mode mesh.ProbesPerPort it is required.
	WorkDir string
	// Concurrency is the number of Envoy's worker threads, 1 to 1024. Default: as many as its CPU limit has processors, rounded up, and
	// mesh.DefaultConcurrency where there is none.
	Concurrency int
	// Level of the agent's log. Envoy's own log level is info if this is debug, error if it is error, else warning.
	// Default info.
	Level slog.Level
	// LBHealthPort answers load balancers on all addresses, see package lb. Default 0: none.
	LBHealthPort int
	// LBDrainTime is how long a proxy that ends serves on after it has told load balancers, before it drains, 0s to 1h. Without an
	// LBHealthPort, or with LastToEnd, it does not.
	LBDrainTime time.Duration
	// MetricsAddress serves the agent's metrics and Envoy's to Prometheus, and nothing else; port 0 takes a free one. Default: none.
	MetricsAddress string
	// MetricsInclude are the prefixes of the names of Envoy's metrics that are served there. Default mesh.DefaultMetricFamilies.
	MetricsInclude []string
	// Probes of the pod. With port 0, or with an empty table, no probes are answered.
	Probes probe.Environment
	// OpenFiles is how many file descriptors the process may open, which its ports share. Default: no limit.
	OpenFiles int
	// Version of the program, to tell the control plane.
	Version string
	// Listen opens AdminAddress, LBHealthPort and the agent's Unix sockets in WorkDir. Default: net.ListenConfig.Listen.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// Dial connects to the control plane by tcp, and to Envoy's sockets in WorkDir by unix. Default: net.Dialer.DialContext, with TCP keepalive.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Launcher runs Envoy. Default: envoy.ProcessLauncher.
	Launcher envoy.Launcher
}

// DefaultAdminAddress is where supervisors ask an agent that names no other address.
const DefaultAdminAddress = "127.0.0.1:9902"

// DefaultOptions returns options to which only what is required must be added.
func DefaultOptions() Options {
	return Options{
		Mesh: mesh.DefaultMesh, AdminAddress: DefaultAdminAddress, DrainTime: mesh.DefaultDrainTime, LBDrainTime: mesh.DefaultLBDrainTime,
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

// dialControlPlane returns Dial for the control plane, nil for the default.
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
		{"ControlPlane", o.ControlPlane}, {"CAFile", o.CAFile}, {"Name", o.Name}, {"Mesh", o.Mesh}, {"TokenFile", o.TokenFile},
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
		refuse("Concurrency", strconv.Itoa(o.Concurrency), "must be a number from 1 to 1024, or 0 for one for each processor of the CPU limit")
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

// takenPort says what a port is needed for that is to be for load balancers or Prometheus, "" for nothing.
func (o *Options) takenPort(port int) string {
	if use := reservedPorts[port]; use != "" {
		return "the port of " + use
	}
	if admin, err := portOf(o.AdminAddress); err == nil && admin == port {
		return "the port that supervisors ask"
	}
	if answered, err := o.Probes.Needed(); err == nil && answered && o.Probes.Port == port {
		return "the virtual port, on which probes are answered"
	}
	return ""
}

// reservedPorts are those of Envoy's in a pod, and for what it has them.
var reservedPorts = map[int]string{
	mesh.PortRedirectIn: "redirection", mesh.PortRedirectOut: "redirection", mesh.PortReadiness: "the sidecar's readiness",
}

func (o *Options) validateProbes() error {
	var errs []error
	if o.Probes.Mode == mesh.ProbesPerPort && o.WorkDir == "" {
		errs = append(errs, &mesh.FieldError{
			Field: "WorkDir", Allowed: "is required in the mode per-port of probes: Envoy must find the socket of the next agent, too",
		})
	}
	if o.Probes.Port < 0 || o.Probes.Port > 65535 {
		errs = append(errs, &mesh.FieldError{Field: "Probes.Port", Value: strconv.Itoa(o.Probes.Port), Allowed: mesh.AllowedPort + ", or 0 for none"})
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
