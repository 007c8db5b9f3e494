package redirect

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Families are the IP families whose connections are redirected.
type Families string

// The values of Families.
const (
	DualStack Families = "dualstack"
	IPv4      Families = "ipv4"
	IPv6      Families = "ipv6"
)

// Options configure the redirection. They have no defaults: a zero value is an error in each field except the lists,
// MetricsPort, GuardedPort, OutboundOnly and Readiness.
type Options struct {
	// OutboundPort is the port of Envoy's outbound capture listeners.
	OutboundPort int
	// InboundPort is the port of Envoy's inbound capture listeners.
	InboundPort int
	// OutboundOnly does not redirect incoming connections.
	OutboundOnly bool
	// Readiness redirects connections to mesh.PortReadiness, which only Envoy answers, even with OutboundOnly.
	Readiness bool
	// User is the numeric user ID of the agent and Envoy. It cannot be root, since applications often run as root.
	User int
	// ExcludeInboundPorts are ports of the pod to which connections are not redirected.
	ExcludeInboundPorts []int
	// MetricsPort is the agent's port for Prometheus. Connections to it are not redirected either. Default 0: none.
	MetricsPort int
	// ExcludeOutboundPorts are ports of other hosts to which connections are not redirected.
	ExcludeOutboundPorts []int
	// GuardedPort is the port on which the agent answers guarded liveness probes. Connections to it wait while nothing
	// listens there, instead of being refused. It is one of ExcludeInboundPorts. Default 0: none.
	GuardedPort int
	// TCPProbes are ports that are redirected to the application instead of Envoy, for connections without payload.
	TCPProbes []TCPProbe
	// Families are the IP families to redirect. Connections of other families reach applications without Envoy.
	Families Families
}

// Of returns the options for a pod's kernel, with the ports and the user that all sidecars have. It does not validate
// them.
func Of(r *mesh.Redirection) Options {
	o := Options{
		OutboundPort: mesh.PortRedirectOut, InboundPort: mesh.PortRedirectIn, User: mesh.SidecarUser,
		OutboundOnly: r.OutboundOnly, Readiness: true, Families: Families(r.Families),
		ExcludeInboundPorts: ints(r.ExcludeInboundPorts), ExcludeOutboundPorts: ints(r.ExcludeOutboundPorts),
		MetricsPort: int(r.MetricsPort), GuardedPort: int(r.GuardedPort),
	}
	for _, p := range r.TCPProbes {
		o.TCPProbes = append(o.TCPProbes, TCPProbe{Port: int(p.Port), Target: int(p.Target)})
	}
	return o
}

func ints(ports []int32) (all []int) {
	for _, port := range ports {
		all = append(all, int(port))
	}
	return all
}

// Validate returns a *mesh.FieldError for each invalid value, joined.
func (o *Options) Validate() error {
	var errs []error
	bad := func(field string, value any, allowed string, args ...any) {
		errs = append(errs, &mesh.FieldError{Field: field, Value: fmt.Sprint(value), Allowed: fmt.Sprintf(allowed, args...)})
	}
	ports := func(field string, values ...int) {
		for _, port := range values {
			if !isPort(port) {
				bad(field, port, "must be a port from 1 to 65535")
			}
		}
	}
	ports("OutboundPort", o.OutboundPort)
	ports("InboundPort", o.InboundPort)
	ports("ExcludeInboundPorts", o.ExcludeInboundPorts...)
	ports("ExcludeOutboundPorts", o.ExcludeOutboundPorts...)
	if o.InboundPort == o.OutboundPort {
		bad("InboundPort", o.InboundPort, "must differ from the outbound port")
	}
	if slices.Contains(o.ExcludeInboundPorts, mesh.PortReadiness) {
		bad("ExcludeInboundPorts", mesh.PortReadiness,
			"must be redirected: nothing listens on the readiness port, and only Envoy answers for it")
	}
	// the largest value means "no user" in the kernel
	if int64(o.User) < 1 || int64(o.User) >= math.MaxUint32 {
		bad("User", o.User, "must be the id of the sidecar's user, from 1 to 4294967294: connections of this user are not redirected, so it cannot be root")
	}
	if !slices.Contains([]Families{DualStack, IPv4, IPv6}, o.Families) {
		bad("Families", o.Families, "must be dualstack, ipv4 or ipv6")
	}
	if o.GuardedPort != 0 && (!o.answersInbound() || !slices.Contains(o.ExcludeInboundPorts, o.GuardedPort)) {
		bad("GuardedPort", o.GuardedPort, "must be one of the excluded inbound ports, or 0 for none")
	}
	return errors.Join(append(append(errs, o.validateMetricsPort()), o.validateTCPProbes()...)...)
}

// validateMetricsPort returns a *mesh.FieldError if the port is invalid or already used.
func (o *Options) validateMetricsPort() error {
	var allowed string
	switch port := o.MetricsPort; {
	case port == 0:
		return nil
	case !isPort(port):
		allowed = mesh.AllowedPort + ", or 0 for none"
	case port == o.OutboundPort || port == o.InboundPort || port == mesh.PortReadiness:
		allowed = fmt.Sprintf("must not be a port of Envoy: %d, %d or %d",
			o.OutboundPort, o.InboundPort, mesh.PortReadiness)
	case port == mesh.PortMetrics:
		allowed = "must not be the port for supervisors on loopback"
	case slices.Contains(o.ExcludeInboundPorts, port):
		allowed = "must not be an excluded inbound port: two programs would use it"
	default:
		return nil
	}
	return &mesh.FieldError{Field: "MetricsPort", Value: strconv.Itoa(o.MetricsPort), Allowed: allowed}
}

// validateTCPProbes returns a *mesh.FieldError for each invalid value.
func (o *Options) validateTCPProbes() (errs []error) {
	envoys := []int{o.OutboundPort, o.InboundPort, mesh.PortReadiness}
	for index, p := range o.TCPProbes {
		bad := func(allowed string, args ...any) {
			errs = append(errs, &mesh.FieldError{Field: "TCPProbes", Value: p.String(), Allowed: fmt.Sprintf(allowed, args...)})
		}
		isSame := func(other TCPProbe) bool { return other.Port == p.Port }
		isTarget := func(other TCPProbe) bool { return other.Target == p.Port }
		switch {
		case !o.answersInbound():
			bad("must be left out while incoming connections are not redirected")
		case !isPort(p.Port) || !isPort(p.Target):
			bad("must be two ports from 1 to 65535, the probe's and the application's")
		case slices.Contains(envoys, p.Port) || slices.Contains(envoys, p.Target):
			bad("must not use a port of Envoy: %d, %d or %d", o.OutboundPort, o.InboundPort, mesh.PortReadiness)
		case o.MetricsPort != 0 && (p.Port == o.MetricsPort || p.Target == o.MetricsPort):
			bad("must not use the port for Prometheus")
		case slices.IndexFunc(o.TCPProbes, isSame) < index:
			bad("must not use the same port as %s", o.TCPProbes[slices.IndexFunc(o.TCPProbes, isSame)])
		case slices.ContainsFunc(o.TCPProbes, isTarget):
			bad("must not use a port on which a probed application listens")
		case slices.Contains(o.ExcludeInboundPorts, p.Port):
			bad("must not use an excluded inbound port")
		}
	}
	return errs
}

// answersInbound reports whether the table has rules for incoming connections.
func (o *Options) answersInbound() bool { return !o.OutboundOnly || o.Readiness }

func isPort(n int) bool { return n >= 1 && n <= math.MaxUint16 }

// distinct returns sorted ports without duplicates, so that the table does not depend on how a list is written.
func distinct(ports []int) []uint16 {
	var all []uint16
	for _, port := range ports {
		all = append(all, uint16(port))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func decimal[T ~uint16 | ~uint32 | ~int32](n T) string { return strconv.FormatInt(int64(n), 10) }
