package cluster

import (
	"context"
	"fmt"
	"strings"

	"github.com/sonde-mesh/sonde/tools/testbed/machine"
)

const (
	// bridge connects the nodes.
	bridge = "nodes"
	// uplink is the interface with a node's address.
	uplink = "eth0"
)

// switchNamespace is the network namespace of the bridge. In a node's namespace, with the module br_netfilter, the
// bridge itself would translate packets for a NodePort that go to another node, without masquerading: the client would
// get responses from another address.
func (c *Cluster) switchNamespace() string { return c.id + "-switch" }

// makeNetworks creates a network namespace for each node, and connects them.
func (c *Cluster) makeNetworks(ctx context.Context, nodes int, families []family) error {
	if _, err := machine.Run(ctx, "", "ip", "netns", "add", c.switchNamespace()); err != nil {
		return err
	}
	if _, err := machine.Run(ctx, "",
		"ip", "-n", c.switchNamespace(), "link", "add", bridge, "up", "type", "bridge"); err != nil {
		return err
	}
	for node := 1; node <= nodes; node++ {
		if _, err := machine.Run(ctx, "", "ip", "netns", "add", c.namespace(node)); err != nil {
			return err
		}
		// Without duplicate address detection, an address can be used immediately.
		settings := []string{"sysctl", "-qw", "net.ipv4.ip_forward=1"}
		if families[len(families)-1] == familyIPv6 {
			settings = append(settings, "net.ipv6.conf.all.forwarding=1", "net.ipv6.conf.default.accept_dad=0",
				"net.ipv6.conf.all.accept_dad=0")
		}
		command := machine.Enter(c.namespace(node), "", settings...)
		if _, err := machine.Run(ctx, "", command[0], command[1:]...); err != nil {
			return err
		}
	}
	for node := 1; node <= nodes; node++ {
		commands := c.linkCommands(node)
		commands = append(commands, addressCommands(node, nodes, families)...)
		if _, err := machine.Run(ctx, strings.Join(commands, "\n"),
			"ip", "-n", c.namespace(node), "-batch", "-"); err != nil {
			return fmt.Errorf("set up the network of %s: %w", nodeName(node), err)
		}
		if err := c.setPort(ctx, node, true); err != nil {
			return err
		}
	}
	return nil
}

// linkCommands returns the ip commands for a node's interface.
func (c *Cluster) linkCommands(node int) []string {
	return []string{
		"link set lo up",
		fmt.Sprintf("link add %s type veth peer name %s netns %s", uplink, nodeName(node), c.switchNamespace()),
		"link set " + uplink + " up",
	}
}

// addressCommands returns the ip commands for a node's addresses and routes: to pods of other nodes, and to services,
// since kube-proxy only rewrites packets with a route.
func addressCommands(node, nodes int, families []family) []string {
	var commands []string
	for _, f := range families {
		own := f.nodeAddress(node)
		add := fmt.Sprintf("addr add %s/%d dev %s", own, f.nodeBits, uplink)
		if f == familyIPv6 {
			add += " nodad" // an address under duplicate address detection cannot be the source of a route
		}
		commands = append(commands, add,
			fmt.Sprintf("route add %s dev %s src %s", f.services, uplink, own))
		for other := 1; other <= nodes; other++ {
			if other != node {
				commands = append(commands, fmt.Sprintf("route add %s via %s", f.podRange(other), f.nodeAddress(other)))
			}
		}
	}
	return commands
}
