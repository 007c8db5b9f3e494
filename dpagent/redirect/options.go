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

// Options say what is redirected. There are no defaults: the zero value of each field but the lists, MetricsPort, GuardedPort and OutboundOnly is an error.
type Options struct {
	// OutboundPort is the port of Envoy's outbound capture listeners.
	OutboundPort int
	// InboundPort is the port of Envoy's inbound capture listeners.
	InboundPort int
	// OutboundOnly leaves incoming connections alone.
	OutboundOnly bool
	// User is the numeric id of the user of the agent and Envoy. It cannot be root: applications often are.
	User int
	// ExcludeInboundPorts are ports of the pod to which connections are not redirected.
	ExcludeInboundPorts []int
	// MetricsPort is the port at which the agent answers Prometheus, to which connections are not redirected either. Default 0: none.
	MetricsPort int
	// ExcludeOutboundPorts are ports of other hosts to which connections are not redirected.
	ExcludeOutboundPorts []int
	// GuardedPort is the port at which the agent answers guarded liveness probes: connections to it wait while nothing listens there, instead of being
	// refused. It is one of ExcludeInboundPorts. Default 0: none.
	GuardedPort int
	// TCPProbes are ports that are redirected to the application instead of Envoy, for connections without payload.
	TCPProbes []TCPProbe
	// Families are the IP families to redirect. Connections of the other one reach applications without Envoy.
	Families Families
}

// Validate returns a *mesh.FieldError for each bad value, joined.
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
		bad("ExcludeInboundPorts", mesh.PortReadiness, "must be redirected: nothing listens there, only Envoy answers for the sidecar's readiness")
	}
	// the last one means "no user" in the kernel
	if int64(o.User) < 1 || int64(o.User) >= math.MaxUint32 {
		bad("User", o.User, "must be the id of the sidecar's user, from 1 to 4294967294: connections of this user are not redirected, so it cannot be root")
	}
	if !slices.Contains([]Families{DualStack, IPv4, IPv6}, o.Families) {
		bad("Families", o.Families, "must be dualstack, ipv4 or ipv6")
	}
	if o.GuardedPort != 0 && (o.OutboundOnly || !slices.Contains(o.ExcludeInboundPorts, o.GuardedPort)) {
		bad("GuardedPort", o.GuardedPort, "must be one of the excluded inbound ports, or 0 for none")
	}
	return errors.Join(append(append(errs, o.validateMetricsPort()), o.validateTCPProbes()...)...)
}

// validateMetricsPort returns a *mesh.FieldError for a port that something else has.
func (o *Options) validateMetricsPort() error {
	var allowed string
	switch port := o.MetricsPort; {
	case port == 0:
		return nil
	case !isPort(port):
		allowed = mesh.AllowedPort + ", or 0 for none"
	case port == o.OutboundPort || port == o.InboundPort || port == mesh.PortReadiness:
		allowed = fmt.Sprintf("must not be a port of Envoy's: %d, %d or %d", o.OutboundPort, o.InboundPort, mesh.PortReadiness)
	case port == mesh.PortMetrics:
		allowed = "must not be the port that supervisors ask on loopback"
	case slices.Contains(o.ExcludeInboundPorts, port):
		allowed = "must be a port that is not among the excluded inbound ports: two programs would have it"
	default:
		return nil
	}
	return &mesh.FieldError{Field: "MetricsPort", Value: strconv.Itoa(o.MetricsPort), Allowed: allowed}
}

// validateTCPProbes returns a *mesh.FieldError for each bad value.
func (o *Options) validateTCPProbes() (errs []error) {
	envoys := []int{o.OutboundPort, o.InboundPort, mesh.PortReadiness}
	for index, p := range o.TCPProbes {
		bad := func(allowed string, args ...any) {
			errs = append(errs, &mesh.FieldError{Field: "TCPProbes", Value: p.String(), Allowed: fmt.Sprintf(allowed, args...)})
		}
		isSame := func(other TCPProbe) bool { return other.Port == p.Port }
		isTarget := func(other TCPProbe) bool { return other.Target == p.Port }
		switch {
		case o.OutboundOnly:
			bad("must be left out while incoming connections are not redirected")
		case !isPort(p.Port) || !isPort(p.Target):
			bad("must be two ports from 1 to 65535, the probe's and the application's")
		case slices.Contains(envoys, p.Port) || slices.Contains(envoys, p.Target):
			bad("must not have a port of Envoy's: %d, %d or %d", o.OutboundPort, o.InboundPort, mesh.PortReadiness)
		case o.MetricsPort != 0 && (p.Port == o.MetricsPort || p.Target == o.MetricsPort):
			bad("must not have the port for Prometheus")
		case slices.IndexFunc(o.TCPProbes, isSame) < index:
			bad("must have a port of its own, and %s has it too", o.TCPProbes[slices.IndexFunc(o.TCPProbes, isSame)])
		case slices.ContainsFunc(o.TCPProbes, isTarget):
			bad("must have a port on which no application listens, and one that is probed does")
		case slices.Contains(o.ExcludeInboundPorts, p.Port):
			bad("must have a port that is not among the excluded inbound ports")
		}
	}
	return errs
}

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
