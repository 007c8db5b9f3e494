package cluster

import (
	"fmt"
	"net/netip"
	"strings"
)

// IPFamily selects the address families of pods, services and nodes.
type IPFamily string

// Values of IPFamily.
const (
	Dual IPFamily = "dual"
	IPv4 IPFamily = "ipv4"
	IPv6 IPFamily = "ipv6"
)

// family has the address ranges of one IP version, which exist only in the network namespaces of the nodes.
type family struct {
	// Formats of the address of node N and of the range of its pods, and the ranges of all pods and of services.
	node, nodePods string
	pods, services netip.Prefix
	// nodeBits is the length of the prefix of the nodes' network.
	nodeBits int
	dns      netip.Addr
	// apiService is the address of the service kubernetes, always the first of the range.
	apiService netip.Addr
	// any is the address to listen on all addresses, and all the range of all addresses.
	any netip.Addr
	all netip.Prefix
}

var (
	familyIPv4 = family{
		node: "10.99.0.%d", nodeBits: 24, nodePods: "10.88.%d.0/24",
		pods: netip.MustParsePrefix("10.88.0.0/16"), services: netip.MustParsePrefix("10.96.0.0/16"),
		apiService: netip.MustParseAddr("10.96.0.1"), dns: netip.MustParseAddr("10.96.0.10"),
		any: netip.IPv4Unspecified(), all: netip.MustParsePrefix("0.0.0.0/0"),
	}
	familyIPv6 = family{
		node: "fd99::%d", nodeBits: 64, nodePods: "fd88:%d::/64",
		pods: netip.MustParsePrefix("fd88::/16"), services: netip.MustParsePrefix("fd96::/112"),
		apiService: netip.MustParseAddr("fd96::1"), dns: netip.MustParseAddr("fd96::a"),
		any: netip.IPv6Unspecified(), all: netip.MustParsePrefix("::/0"),
	}
)

// families returns the families in order. A Service that sets no family gets the first one.
func (f IPFamily) families() ([]family, error) {
	switch f {
	case Dual:
		return []family{familyIPv4, familyIPv6}, nil
	case IPv4:
		return []family{familyIPv4}, nil
	case IPv6:
		return []family{familyIPv6}, nil
	}
	return nil, fmt.Errorf("IP family %q is unknown: choose %s, %s or %s", string(f), Dual, IPv4, IPv6)
}

// nodeAddress returns the address of a node, which counts from 1.
func (f family) nodeAddress(node int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(f.node, node))
}

// podRange returns the range of the pods of a node.
func (f family) podRange(node int) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf(f.nodePods, node))
}

// joined calls the function for each family, and joins the results with commas.
func joined[T fmt.Stringer](families []family, of func(family) T) string {
	var all []string
	for _, f := range families {
		all = append(all, of(f).String())
	}
	return strings.Join(all, ",")
}
