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

// Options say what is redirected. There are no defaults: the zero value of each field but the lists and OutboundOnly is an error.
type Options struct {
	// OutboundPort is the port of Envoy's outbound capture listeners.
	OutboundPort int
	// InboundPort is the port of Envoy's inbound capture listeners.
	InboundPort int
	// OutboundOnly leaves incoming connections alone.
	OutboundOnly bool
	// User is the numeric id of the user as whom the agent and Envoy run. It cannot be root: applications often are.
	User int
	// ExcludeInboundPorts are ports of the pod to which connections are not redirected.
	ExcludeInboundPorts []int
	// ExcludeOutboundPorts are ports of other hosts to which connections are not redirected.
	ExcludeOutboundPorts []int
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
			if port < 1 || port > math.MaxUint16 {
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
	return errors.Join(errs...)
}

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
