package generator

import (
	"net/netip"
	"strconv"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Names of Envoy resources and statistics, see docs/naming.md. A service's Cluster, ClusterLoadAssignment and
// RouteConfiguration are named by the value of kuma.io/service. It contains no colon, so all names that could collide
// with it contain one.
const (
	// Listeners to which connections are redirected; IPv6 adds the suffix "6".
	nameInboundCapture  = "inbound:capture"
	nameOutboundCapture = "outbound:capture"
	// Clusters of redirected connections that belong to no inbound or service.
	nameInboundPassthrough  = "inbound:passthrough" //nolint:gosec // no password
	nameOutboundPassthrough = "outbound:passthrough"
	// The listener that responds once all listeners are installed.
	nameReadiness = "readiness"
	// The cluster of the agent's own readiness.
	nameAgentReadiness = "agent:readiness"
	// The cluster of the agent's access log.
	nameAgentRecords = "agent:records"
	// The virtual host of an inbound for requests without a host. All replicas use the same one, so that they share the
	// listener.
	noHost = "no-host.invalid"
	// The cluster of the control plane, for ADS.
	nameControlPlane = "sonde:control-plane"
)

// pipeModePrivate is the file mode of sockets that only the agent uses.
const pipeModePrivate = 0o600

// inboundListenerName is the name of the listener of one inbound.
func inboundListenerName(at netip.AddrPort) string { return "inbound:" + at.String() }

// outboundListenerName is the name of the listener of an outbound or of a service's virtual address.
func outboundListenerName(at netip.AddrPort) string { return "outbound:" + at.String() }

// inboundClusterName is the name of the cluster of the application behind an inbound. It contains the inbound's address
// if the inbound has its own, since another inbound may have the same port.
func inboundClusterName(d *mesh.Dataplane, in *mesh.Inbound) string {
	if at := d.InboundAddress(in); in.Address != d.Spec.Networking.Address {
		return "inbound:" + at.String()
	}
	return "inbound:" + strconv.FormatUint(uint64(in.Port), 10)
}

// inboundStat is the name of an inbound in statistics: the same for all replicas, whatever their address.
func inboundStat(in *mesh.Inbound) string {
	return mesh.InboundStats + strconv.FormatUint(uint64(in.Port), 10)
}

func outboundStat(service string) string { return mesh.OutboundStats + service }
