// Package generator makes Envoy's configuration out of the mesh view: pure functions, one file per kind of resource.
package generator

import (
	"net/netip"
	"strconv"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Names of Envoy resources and of statistics; docs/naming.md explains them. The value of kuma.io/service names a
// service's Cluster, ClusterLoadAssignment and RouteConfiguration. It holds no colon, so all other names have one where
// they could meet it.
const (
	// NameInboundCapture and NameOutboundCapture are the listeners that redirection leads to; with "6" at the end those
	// of IPv6.
	NameInboundCapture  = "inbound:capture"
	NameOutboundCapture = "outbound:capture"
	// NameInboundPassthrough and NameOutboundPassthrough are the clusters of connections that no inbound or service claims.
	NameInboundPassthrough  = "inbound:passthrough" //nolint:gosec // no password
	NameOutboundPassthrough = "outbound:passthrough"
	// NameReadiness is the listener that answers once the listeners are in place.
	NameReadiness = "readiness"
	// NameAgentReadiness is the cluster of the agent's own readiness.
	NameAgentReadiness = "agent:readiness"
	// NameControlPlane is the cluster that ADS comes from.
	NameControlPlane = "sonde:control-plane"
	// SecretIdentity and SecretCA are the proxy's certificate with its key, and the roots that it trusts.
	SecretIdentity = "identity"
	SecretCA       = "ca"
)

// Files and sockets, relative to Envoy's working folder, which is the agent's work folder.
const (
	PathIdentity    = "sds/identity.json"
	PathCA          = "sds/ca.json"
	PipeAdmin       = "admin.sock"
	PipeReady       = "ready.sock"
	PipeAgent       = "agent.sock"
	pathReady       = "/ready"  // on PipeReady
	pathAgentReady  = "/readyz" // on PipeAgent and, redirected, on mesh.PortReadiness
	pipeModePrivate = 0o600
)

// InboundListenerName names the listener of one inbound.
func InboundListenerName(at netip.AddrPort) string { return "inbound:" + at.String() }

// OutboundListenerName names the listener of an outbound or of a service's virtual address.
func OutboundListenerName(at netip.AddrPort) string { return "outbound:" + at.String() }

// inboundClusterName names the cluster of the application's port behind an inbound. An inbound with an address of its own
// carries it, since another one may have the same port.
func inboundClusterName(d *mesh.Dataplane, in *mesh.Inbound) string {
	if at := inboundAddress(in); in.Address != d.Spec.Networking.Address {
		return "inbound:" + at.String()
	}
	return "inbound:" + strconv.FormatUint(uint64(in.Port), 10)
}

// inboundStat is the name of an inbound in statistics: the same on all replicas, whatever their address. Those of all that
// comes in begin with "inbound_": the agent adds them up when the proxy drains.
func inboundStat(in *mesh.Inbound) string {
	return "inbound_" + strconv.FormatUint(uint64(in.Port), 10)
}

func outboundStat(service string) string { return "outbound_" + service }

func inboundAddress(in *mesh.Inbound) netip.AddrPort { return addrPort(in.Address, in.Port) }

// addrPort is the zero AddrPort for what Validate refuses: Envoy then refuses the resource, and the error names it.
func addrPort(address string, port uint32) netip.AddrPort {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.Unmap(), uint16(port))
}
