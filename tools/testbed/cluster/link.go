package cluster

import (
	"context"
	"fmt"
	"strings"

	"github.com/sonde-mesh/sonde/tools/testbed/machine"
)

// apiServerTable is the table of nftables, in the network namespace of a node, that drops what the node sends to the API server.
const apiServerTable = "inet sonde_testbed_apiserver"

// SetLink connects a node to the others or cuts it off. The first cannot be cut off: the control plane is in its namespace.
func (c *Cluster) SetLink(ctx context.Context, node int, up bool) error {
	if _, err := c.cuttable(node); err != nil {
		return err
	}
	return c.setPort(ctx, node, up)
}

// cuttable returns the description of the cluster, or an error for a node that cannot be cut off.
func (c *Cluster) cuttable(node int) (description, error) {
	d, err := c.complete()
	if err != nil {
		return d, err
	}
	if err := d.checkNode(node); err != nil {
		return d, err
	}
	if node == 1 {
		return d, fmt.Errorf("node 1 has the control plane: cut off another, of 2 to %d", d.Nodes)
	}
	return d, nil
}

// setPort makes the peer of the node's interface a port of the bridge, which is up or down.
func (c *Cluster) setPort(ctx context.Context, node int, up bool) error {
	state := "down"
	if up {
		state = "up"
	}
	_, err := machine.Run(ctx, "", "ip", "-n", c.switchNamespace(), "link", "set", nodeName(node), "master", bridge, state)
	return err
}

// SetAPIServerLink connects what runs on the network of a node itself, the kubelet and kube-proxy, with the API server, or cuts it off as a network
// does that loses packets. What pods send goes on, to the API server too, and so does what others send to the node, as the API server that asks the kubelet for a
// log. It is independent of SetLink. The first node cannot be cut off: the control plane is on its network.
func (c *Cluster) SetAPIServerLink(ctx context.Context, node int, up bool) error {
	d, err := c.cuttable(node)
	if err != nil {
		return err
	}
	families, err := d.IPFamily.families()
	if err != nil {
		return err
	}
	command := machine.Enter(c.namespace(node), "", "nft", "-f", "-")
	_, err = machine.Run(ctx, apiServerRules(families, up), command[0], command[1:]...)
	return err
}

// apiServerRules returns the input of nft: the table with its rules, or none if the link is up. Either works whatever there was before. What comes from pods is
// forwarded, and passes neither hook. Services have been translated where it is sent, and not yet back where it arrives.
func apiServerRules(families []family, up bool) string {
	var out, in strings.Builder
	for _, f := range families {
		protocol := "ip"
		if f == familyIPv6 {
			protocol = "ip6"
		}
		fmt.Fprintf(&out, "\t\t%s daddr %s tcp dport %d drop\n", protocol, f.nodeAddress(1), portAPI)
		fmt.Fprintf(&in, "\t\t%s saddr %s tcp sport %d drop\n", protocol, f.nodeAddress(1), portAPI)
	}
	rules := "add table " + apiServerTable + "\ndelete table " + apiServerTable + "\n"
	if up {
		return rules
	}
	const chain = "\tchain %[1]s {\n\t\ttype filter hook %[1]s priority filter; policy accept;\n%[2]s\t}\n"
	return rules + "table " + apiServerTable + " {\n" + fmt.Sprintf(chain, "output", out.String()) + fmt.Sprintf(chain, "input", in.String()) + "}\n"
}
